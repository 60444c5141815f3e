# RL Lab in a container. For a CPU:
#   docker build -t rl-lab .
#   docker run --rm -v "$PWD/runs:/runs" rl-lab train CartPole-v1:ppo
# For NVIDIA GPUs (the wheels bring CUDA with them; the host needs its driver and toolkit):
#   docker build -t rl-lab:cuda --build-arg DEVICE=cuda .
#   docker run --rm --gpus all -v "$PWD/runs:/runs" rl-lab:cuda check install
FROM python:3.11-slim

ARG DEVICE=cpu
ARG EXTRAS=box2d,mujoco
ARG UID=1000
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

# g++ compiles updates (compute.compile) and, with swig, Box2D; EGL draws pictures without a screen.
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ git libegl1 libgl1 swig \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /app
# The large layer first: it changes with the versions only, not with the code.
COPY constraints.txt requirements.txt ./
RUN case "$DEVICE" in \
      cpu) FROM="--extra-index-url https://download.pytorch.org/whl/cpu"; BUILD=+cpu ;; \
      cuda) FROM=""; BUILD="" ;; \
      *) echo "DEVICE must be cpu or cuda, not $DEVICE" >&2; exit 1 ;; \
    esac \
 && TORCH=$(grep "^torch==" constraints.txt) && pip install $FROM "$TORCH$BUILD" \
 && grep -v "^-e" requirements.txt > core.txt && pip install -r core.txt && rm core.txt

COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install -c constraints.txt ".[$EXTRAS]"

# Runs belong to the user outside: pass --build-arg UID=$(id -u) if yours is not 1000.
RUN useradd --uid "$UID" --create-home lab && mkdir /runs && chown lab /runs
USER lab
WORKDIR /runs
ENV MUJOCO_GL=egl RL_LAB_RUNS=/runs
VOLUME /runs
ENTRYPOINT ["rl-lab"]
CMD ["--help"]
