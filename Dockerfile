# RL Lab in a container. For a CPU:
#   docker build -t rl-lab .
#   docker run --rm -v "$PWD/runs:/work/runs" rl-lab train CartPole-v1:ppo
# For NVIDIA GPUs (the wheels bring CUDA with them; the host needs its driver and toolkit):
#   docker build -t rl-lab:cuda --build-arg DEVICE=cuda .
#   docker run --rm --gpus all -v "$PWD/runs:/work/runs" rl-lab:cuda check install
FROM python:3.11-slim

ARG DEVICE=cpu
ARG EXTRAS=box2d,mujoco
ARG UID=1000
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

# g++ compiles updates (compute.compile) and, with swig, Box2D; EGL draws pictures without a screen.
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ git libegl1 libgl1 swig \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/rl-lab
# The large layer first: it changes with the versions only, not with the code.
COPY constraints.txt requirements.txt ./
RUN case "$DEVICE" in \
      cpu) INDEX=https://download.pytorch.org/whl/cpu ;; \
      cuda) INDEX=https://pypi.org/simple ;; \
      *) echo "DEVICE must be cpu or cuda, not $DEVICE" >&2; exit 1 ;; \
    esac \
 && pip install --index-url "$INDEX" --extra-index-url https://pypi.org/simple \
      -c constraints.txt torch \
 && grep -v "^-e" requirements.txt > core.txt && pip install -r core.txt && rm core.txt

COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install -c constraints.txt ".[$EXTRAS]"

# Runs belong to the user outside: pass --build-arg UID=$(id -u) if yours is not 1000.
RUN useradd --uid "$UID" --create-home lab && mkdir -p /work/runs && chown -R lab /work
USER lab
WORKDIR /work
ENV MUJOCO_GL=egl
VOLUME /work/runs
ENTRYPOINT ["rl-lab"]
CMD ["--help"]
