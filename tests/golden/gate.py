"""The gate of a refactoring: tiny seeded runs of every algorithm, and the digests of their results.

    python tests/golden/gate.py            # run all, compare with digests.json, exit 1 on a change
    python tests/golden/gate.py --record   # write digests.json
    python tests/golden/gate.py sac dqn    # only the cases whose names contain one of these words
    python tests/golden/gate.py --eager    # leave the compiled runs out (no compiler is needed)

A digest is the sha256 of metrics.jsonl, and one of the learned tensors: of their values, not of the
names they are saved under, so that a rename does not count. The last bits depend on the processor
and on the versions of torch and numpy: digests.json names those it was recorded with, and the
comparison is refused on others. Only the command line is used: the gate outlives what is inside.

Digests that were recorded again after a change of numbers, and why:

* dqn, dqn_prioritized, dqn_c51, r2d2: `train/entropy` in its last digit, where equal numbers were
  averaged; tensors were equal.
* ppo_gru, ppo_lstm, r2d2, world_models: GRU and LSTM got a backward pass of their own and fewer
  operations per step: sums are rounded in another order (losses differ by about 1e-7, relative).
"""

import argparse
import hashlib
import io
import json
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from safetensors.torch import load_file

from rl_lab.cli.main import main as rl_lab
from rl_lab.config import catalog  # noqa: F401  (declares the built-ins)
from rl_lab.core import registry
from rl_lab.records.provenance import numerics_fingerprint

DIGESTS = Path(__file__).with_name("digests.json")
COMMON = """training.total_timesteps=512 environment.num_envs=4 environment.max_episode_steps=40
    evaluation.every_steps=256 evaluation.episodes=2 evaluation.num_envs=2
    evaluation.test_episodes=2 checkpoint.every_steps=256 logging.tensorboard=false
    logging.report=false logging.every_steps=1 compute.threads=1"""
LAYERS = "network.encoder.hidden_dims=[8]"
PPO = f"algorithm.rollout_steps=16 algorithm.epochs=2 {LAYERS}"
REPLAY = """algorithm.learning_starts=32 algorithm.batch_size=16 algorithm.train_every=16
    algorithm.replay_ratio=0.1 buffers.replay.capacity=256"""
HEADS = "network.actor.hidden_dims=[8] network.critic.hidden_dims=[8]"
WORLD = """algorithm.learning_starts=32 algorithm.batch_size=3 algorithm.batch_length=6
    algorithm.train_every=16 algorithm.replay_ratio=0.03 algorithm.deter=8 algorithm.hidden=8
    algorithm.stoch=3 algorithm.units=8 algorithm.layers=1 buffers.replay.capacity=256"""
PLANNER = """algorithm.planner.horizon=3 algorithm.planner.candidates=8 algorithm.planner.elites=2
    algorithm.planner.iterations=2"""
V_M_C = """algorithm.latent=2 algorithm.channels=[2,4] algorithm.hidden=4 algorithm.mixtures=2
    algorithm.batch_size=4 algorithm.sequences=2 algorithm.batch_length=3 algorithm.population=4
    algorithm.episodes=1 algorithm.train_every=16 algorithm.context=2 algorithm.horizon=3
    algorithm.sigma=0.5 buffers.replay.capacity=256"""
ROLLOUT = "algorithm.rollout_steps=16"

# name -> environment, algorithm, words
CASES: dict[str, tuple[str, str, str]] = {
    "ppo": ("CartPole-v1", "ppo", PPO),
    "ppo_box": ("Pendulum-v1", "ppo", f"{PPO} environment.normalize_obs=true"),
    "ppo_gru": ("CartPole-v1", "ppo", f"{PPO} network.memory.type=gru network.memory.hidden_dim=8"),
    "ppo_lstm": ("Pendulum-v1", "ppo", f"{PPO} network.memory.type=lstm network.shared_torso=true"),
    "reinforce": ("CartPole-v1", "reinforce", f"{ROLLOUT} algorithm.batch_steps=32 {LAYERS}"),
    "dqn": ("CartPole-v1", "dqn", f"{REPLAY} {LAYERS}"),
    "dqn_prioritized": (
        "CartPole-v1",
        "dqn",
        f"{REPLAY} {LAYERS} buffers.replay.type=prioritized algorithm.n_step=3 "
        "algorithm.dueling=true",
    ),
    "dqn_c51": (
        "CartPole-v1",
        "dqn",
        f"{REPLAY} {LAYERS} algorithm.distribution=c51 algorithm.value_range=[0,40]",
    ),
    "dqn_quantile_noisy": (
        "CartPole-v1",
        "dqn",
        f"{REPLAY} {LAYERS} algorithm.distribution=quantile algorithm.noisy=true",
    ),
    "r2d2": (
        "CartPole-v1",
        "r2d2",
        "algorithm.learning_starts=32 algorithm.batch_size=3 algorithm.batch_length=14 "
        f"algorithm.train_every=16 buffers.replay.capacity=256 {LAYERS} "
        "network.memory.type=gru network.memory.hidden_dim=8",
    ),
    "sac": ("Pendulum-v1", "sac", f"{REPLAY} {HEADS}"),
    "sac_discrete": ("CartPole-v1", "sac", f"{REPLAY} {HEADS}"),
    "sac_gsde": ("Pendulum-v1", "sac", f"{REPLAY} {HEADS} algorithm.policy=gsde"),
    "sac_flow": ("Pendulum-v1", "sac", f"{REPLAY} {HEADS} algorithm.policy=flow"),
    "sac_redq_droq": (
        "Pendulum-v1",
        "sac",
        f"{REPLAY} {HEADS} algorithm.critics=3 algorithm.subset=2 algorithm.critic_dropout=0.01 "
        "algorithm.critic_norm=true",
    ),
    "sac_her": (
        "PointGoal-v0",
        "sac",
        f"{REPLAY} {HEADS} buffers.replay.type=her",
    ),
    "sql": (
        "Pendulum-v1",
        "sql",
        f"{REPLAY} {HEADS} algorithm.value_particles=4 algorithm.kernel_particles=4",
    ),
    "td3": ("Pendulum-v1", "td3", f"{REPLAY} {HEADS}"),
    "q_learning": ("FrozenLake-v1", "q_learning", ROLLOUT),
    "sarsa": ("FrozenLake-v1", "sarsa", ROLLOUT),
    "epsilon_greedy": ("Bandit-v0", "epsilon_greedy", ROLLOUT),
    "ucb": ("Bandit-v0", "ucb", ROLLOUT),
    "gradient_bandit": ("Bandit-v0", "gradient_bandit", ROLLOUT),
    "thompson": ("Bandit-v0", "thompson", ROLLOUT),
    "random": ("CartPole-v1", "random", "algorithm.collect_steps=16"),
    "brownian": ("Pendulum-v1", "brownian", "algorithm.collect_steps=16"),
    "dreamer_v1": ("Pendulum-v1", "dreamer_v1", f"{WORLD} algorithm.horizon=3"),
    "dreamer_v2": ("CartPole-v1", "dreamer_v2", f"{WORLD} algorithm.horizon=3"),
    "dreamer_v3": ("CartPole-v1", "dreamer_v3", f"{WORLD} algorithm.horizon=3"),
    "dreamer_v3_box": ("Pendulum-v1", "dreamer_v3", f"{WORLD} algorithm.horizon=3"),
    "dreamer_v3_pixels": (
        "PixelTrack-v0",
        "dreamer_v3",
        f"{WORLD} algorithm.horizon=3 algorithm.channels=2 algorithm.blocks=2",
    ),
    "planet": ("Pendulum-v1", "planet", f"{WORLD} {PLANNER}"),
    "planet_mppi": ("Pendulum-v1", "planet", f"{WORLD} {PLANNER} algorithm.planner.type=mppi"),
    "world_models": (
        "PixelTrack-v0",
        "world_models",
        f"{V_M_C} "
        "training.phases=[{name:all,hooks:[collect,update_world_model,update_controller]}]",
    ),
}
COMPILED = """ppo ppo_box dqn dqn_c51 r2d2 sac sac_discrete sac_redq_droq sql td3 dreamer_v1
    dreamer_v2 dreamer_v3 dreamer_v3_box"""


def cases(words: list[str], eager: bool) -> list[tuple[str, bool]]:
    """(case, compiled?) of everything that was asked for."""
    found = [(name, False) for name in CASES] + [
        (name, True) for name in COMPILED.split() if not eager
    ]
    return [each for each in found if not words or any(word in each[0] for word in words)]


def digests(name: str, compiled: bool) -> dict[str, str]:
    """Train one case; the digests of what came out."""
    env, algorithm, words = CASES[name]
    named = [] if algorithm == "random" else [f"algorithm.name={algorithm}"]
    switch = f"compute.compile={'on' if compiled else 'off'}"
    with tempfile.TemporaryDirectory(prefix="rl-lab-gate-") as folder:
        command = ["train", f"{env}:random", *named, *COMMON.split(), *words.split(), switch]
        with redirect_stdout(io.StringIO()):
            code = rl_lab([*command, "-q", "--seed", "7", "--runs-dir", folder])
        if code:
            raise SystemExit(f"{name}: exit code {code}")
        (run,) = Path(folder).glob("*-*")
        last = sorted(run.glob("checkpoints/step_*"))[-1]
        metrics = hashlib.sha256((run / "metrics.jsonl").read_bytes()).hexdigest()
        return {"metrics": metrics, "tensors": tensor_digest(last / "state.safetensors")}


def tensor_digest(file: Path) -> str:
    """Of the float tensors that the algorithm learned, whatever they are called."""
    found = set()
    for name, tensor in load_file(file).items():
        if name.startswith("/workflow") and tensor.is_floating_point() and tensor.numel() > 1:
            found.add(hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest())
    return hashlib.sha256("".join(sorted(found)).encode()).hexdigest()


def machine() -> dict[str, str | None]:
    """What decides the last bits, as far as the gate is concerned."""
    known = numerics_fingerprint(compiled=True)
    return {key: known[key] for key in ("cpu", "cpu_capability", "torch", "numpy", "compiler")}


def main() -> int:
    """Run, then record or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only the cases whose names contain one of these")
    parser.add_argument("--record", action="store_true", help="write digests.json")
    parser.add_argument("--eager", action="store_true", help="no compiled runs")
    asked = parser.parse_args()
    known = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {"machine": {}, "cases": {}}
    if not asked.record and known["machine"] != machine():
        print(f"recorded on another machine: {known['machine']}\nthis one is: {machine()}")
        return 2
    if missing := sorted(set(registry.names("workflow")) - {case[1] for case in CASES.values()}):
        print(f"algorithms without a case: {', '.join(missing)}")
    found: dict[str, dict[str, str]] = {}
    changed = []
    for name, compiled in cases(asked.words, asked.eager):
        key = f"{name}/{'compiled' if compiled else 'eager'}"
        found[key] = digests(name, compiled)
        before = known["cases"].get(key)
        parts = [part for part, value in found[key].items() if (before or {}).get(part) != value]
        verdict = "equal" if not parts else "new" if before is None else f"CHANGED: {parts}"
        changed += [key] if verdict != "equal" else []
        print(f"{key:32} {verdict}", flush=True)
    if asked.record:
        kept = known["cases"] if asked.words and known["machine"] == machine() else {}
        text = json.dumps({"machine": machine(), "cases": {**kept, **found}}, indent=1)
        DIGESTS.write_text(f"{text}\n")
        return 0
    print(f"{len(found) - len(changed)} equal, {len(changed)} changed")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
