"""IQL and TD3+BC here and in d3rlpy: updates per second side by side, and returns.

    python benchmarks/offline_peers.py [--data FILE.npz] [--peer-python PATH] [--repeats 5]

Both learn from the same transitions with the same layers, batches and rates, one thread each, in
turns within one run: what else the machine does slows both. Ours are whole update hooks (sampling,
guards, metrics), the peer's are sampling and `update`, without its progress bar and logs. `--train
N` trains both for N updates first, and plays 20 episodes each. d3rlpy needs other versions than we
do: `--peer-python` is the interpreter of an environment that has it.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

ENV = "Pendulum-v1"
LAYERS, BATCH, RATE, GAMMA = [256, 256], 256, 3e-4, 0.99
ALGORITHMS = ("iql", "td3_bc")
EPISODES = 20


# ----------------------------------------------------------------------------------------- the peer


def serve(algorithm: str, data: Path) -> None:
    """Answer requests on stdin, in the interpreter that has d3rlpy: a line in, a line out."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    import d3rlpy
    import gymnasium as gym
    import torch
    from d3rlpy.dataset import MDPDataset
    from d3rlpy.models import VectorEncoderFactory
    from d3rlpy.preprocessing import StandardObservationScaler

    torch.set_num_threads(1)
    d3rlpy.seed(1)
    arrays = dict(np.load(data))
    dataset = MDPDataset(
        observations=arrays["obs"],
        actions=arrays["action"],
        rewards=arrays["reward"],
        terminals=arrays["terminated"].astype(np.float32),
        timeouts=(arrays["truncated"] & ~arrays["terminated"]).astype(np.float32),
    )
    mean, std = arrays["obs"].mean(0), arrays["obs"].std(0)
    layers = VectorEncoderFactory(LAYERS)
    shared = {
        "batch_size": BATCH,
        "gamma": GAMMA,
        "actor_learning_rate": RATE,
        "critic_learning_rate": RATE,
        "actor_encoder_factory": layers,
        "critic_encoder_factory": layers,
        "observation_scaler": StandardObservationScaler(mean=mean, std=std),
    }
    if algorithm == "iql":
        config: Any = d3rlpy.algos.IQLConfig(
            **shared, value_encoder_factory=layers, expectile=0.7, weight_temp=1.0
        )
    else:
        config = d3rlpy.algos.TD3PlusBCConfig(**shared, alpha=2.5, update_actor_interval=2)
    learner = config.create(device="cpu:0")
    learner.build_with_dataset(dataset)

    def updates(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            learner.update(dataset.sample_transition_batch(BATCH))
        return time.perf_counter() - started

    def score(episodes: int) -> float:
        env, found = gym.make(ENV), []
        high = env.action_space.high  # type: ignore[attr-defined]
        for seed in range(episodes):
            obs, ended, total = env.reset(seed=10_000 + seed)[0], False, 0.0
            while not ended:
                action = high * learner.predict(obs[None])[0]
                obs, reward, terminated, truncated, _ = env.step(action)
                total, ended = total + float(reward), terminated or truncated
            found.append(total)
        return float(np.mean(found))

    commands = {"updates": updates, "score": score}
    print(json.dumps(d3rlpy.__version__), file=out, flush=True)
    for line in sys.stdin:
        name, count = json.loads(line)
        print(json.dumps(commands[name](count)), file=out, flush=True)


class Peer:
    """d3rlpy in a process of its own."""

    def __init__(self, python: str, algorithm: str, data: Path) -> None:
        command = [python, str(Path(__file__).resolve()), "--serve", algorithm, "--data", str(data)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONPATH", None)
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        self.version = self._answer()

    def __call__(self, name: str, count: int) -> float:
        """Seconds of that many updates, or the mean return of that many episodes."""
        assert self.process.stdin is not None
        print(json.dumps([name, count]), file=self.process.stdin, flush=True)
        return float(self._answer())

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of d3rlpy has ended with {self.process.wait()}")
        return json.loads(line)


# --------------------------------------------------------------------------------------------- ours


class Ours:
    """The same updates by a run of ours: whole hooks."""

    def __init__(self, algorithm: str, data: Path, folder: Path, compile: str) -> None:
        from rl_lab.api import configure
        from rl_lab.config.resolve import resolve
        from rl_lab.display.sinks import Sinks
        from rl_lab.records.run_directory import RunDirectory
        from rl_lab.run.build import build_run

        words = [
            f"buffers={{data: {{type: offline, path: {data}}}}}",
            *(f"network.{part}.hidden_dims={LAYERS}" for part in ("actor", "critic")),
            *(f"algorithm.batch_size={BATCH}", f"algorithm.learning_rate={RATE}"),
            *(f"algorithm.gamma={GAMMA}", f"compute.compile={compile}", "compute.threads=1"),
            "training.phases=[{name: offline, type: offline, hooks: [update]}]",
            "algorithm.beta=1" if algorithm == "iql" else "algorithm.alpha=2.5",
            *(["algorithm.actor_schedule=constant"] if algorithm == "iql" else []),
        ]
        config = resolve(configure(f"{ENV}:{algorithm}_defaults", [*words, "experiment.seed=1"])[0])
        self.run, _ = build_run(
            config, lambda: RunDirectory.create(folder, "ours"), Sinks([], None)
        )

    def __call__(self, name: str, count: int) -> float:
        """Seconds of that many updates, or the mean return of that many episodes."""
        if name == "score":
            return float(self.run.evaluate("test", count).summary()["return_mean"])
        started = time.perf_counter()
        for _ in range(count):
            self.run.execute("update")
        return time.perf_counter() - started


def random_play(file: Path, episodes: int = 20) -> Path:
    """Transitions of random actions, in units of [-1, 1]."""
    import gymnasium as gym

    env, rng = gym.make(ENV), np.random.default_rng(0)
    names = ("obs", "action", "reward", "terminated", "truncated", "next_obs")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    high = env.action_space.high  # type: ignore[attr-defined]
    for seed in range(episodes):
        obs, ended = env.reset(seed=seed)[0], False
        while not ended:
            action = rng.uniform(-1, 1, high.shape).astype(np.float32)
            after, reward, terminated, truncated, _ = env.step(high * action)
            row = obs, action, np.float32(float(reward)), terminated, truncated, after
            for name, value in zip(names, row, strict=True):
                columns[name].append(value)
            obs, ended = after, terminated or truncated
    np.savez(file, **{name: np.array(values) for name, values in columns.items()})  # type: ignore[arg-type]
    return file


def has_d3rlpy(python: str) -> bool:
    """True if this interpreter finds it."""
    look = "import importlib.util as u, sys; sys.exit(u.find_spec('d3rlpy') is None)"
    return subprocess.run([python, "-c", look], check=False).returncode == 0


def compare(algorithm: str, data: Path, asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both in turns; updates per second by the median round."""
    ours, peer = Ours(algorithm, data, folder, asked.compile), None
    try:
        peer = Peer(asked.peer_python, algorithm, data)
        both = {"rl_lab": ours, f"d3rlpy {peer.version}": peer}
        found: dict[str, Any] = {"algorithm": algorithm, "load": os.getloadavg()[0]}
        if asked.train:
            for name, each in both.items():
                each("updates", asked.train)
                found[f"return, {name}"] = round(each("score", EPISODES), 1)
        for each in both.values():
            each("updates", 20)  # warm
        seconds: dict[str, list[float]] = {name: [] for name in both}
        for _ in range(asked.repeats):
            for name, each in both.items():
                seconds[name].append(each("updates", asked.updates))
        rates = {name: asked.updates / median(values) for name, values in seconds.items()}
        found |= {f"updates/s, {name}": round(rate, 1) for name, rate in rates.items()}
        ratios = [b / a for a, b in zip(*seconds.values(), strict=True)]
        return {**found, "ratio": round(median(ratios), 2)}
    finally:
        if peer is not None:
            peer.close()


def main() -> None:
    """Compare, and print a line of JSON for each algorithm."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", choices=ALGORITHMS, help="only this one")
    parser.add_argument(
        "--data", type=Path, help="transitions of Pendulum-v1, .npz; random if none"
    )
    parser.add_argument("--updates", type=int, default=200, help="updates of a round")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--train", type=int, default=0, help="updates before returns are measured")
    parser.add_argument("--compile", choices=("off", "on"), default="off", help="ours")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter with d3rlpy")
    parser.add_argument("--serve", choices=ALGORITHMS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        return serve(asked.serve, asked.data)
    if not has_d3rlpy(asked.peer_python):
        sys.stdout.write(
            f"skipped: {asked.peer_python} has no d3rlpy (pip install torch d3rlpy in an "
            "environment of its own, then --peer-python PATH)\n"
        )
        return None
    with TemporaryDirectory(prefix="rl-lab-peers-") as folder:
        data = asked.data or random_play(Path(folder) / "random.npz")
        for algorithm in [asked.algorithm] if asked.algorithm else ALGORITHMS:
            found = compare(algorithm, data.resolve(), asked, Path(folder))
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()
    return None


if __name__ == "__main__":
    main()
