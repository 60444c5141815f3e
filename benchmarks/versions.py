"""The speed of two versions of RL Lab beside each other: the same work, in interleaved rounds.

    python benchmarks/versions.py /path/to/older/clone /path/to/newer/clone --rounds 40

Each side is a process that has built a run from its clone (eager, one thread) and takes
actions when asked: collect calls and updates with the buffers between them, no evaluations and no
checkpoints. In every round both sides take the same number of actions, in an order that is drawn.
Printed is how many times as fast the second clone is, by processor time: on a busy machine that
moves less than the time on the clock, yet a busy machine moves it, too.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMON = """environment.num_envs=8 training.total_timesteps=1000000000 evaluation.every_steps=0
    checkpoint.every_steps=0 logging.tensorboard=false logging.report=false compute.compile=off
    compute.threads=1"""
REPLAY = """algorithm.learning_starts=256 algorithm.train_every=8 algorithm.replay_ratio=1
    buffers.replay.capacity=100000"""
WORLD = """algorithm.learning_starts=256 algorithm.batch_size=8 algorithm.batch_length=16
    algorithm.train_every=8 algorithm.replay_ratio=0.125 algorithm.deter=64 algorithm.hidden=64
    algorithm.stoch=8 algorithm.units=64 algorithm.layers=1 algorithm.horizon=8
    buffers.replay.capacity=20000"""
# title -> environment, algorithm, words, actions of a round, actions before the first round
CASES = {
    "PPO, CartPole": ("CartPole-v1", "ppo", "", 20, 20),
    "PPO, Pendulum": ("Pendulum-v1", "ppo", "", 20, 20),
    "DQN, CartPole": ("CartPole-v1", "dqn", REPLAY, 12, 20),
    "SAC, Pendulum": ("Pendulum-v1", "sac", REPLAY, 6, 20),
    "Dreamer v3, CartPole": ("CartPole-v1", "dreamer_v3", WORLD, 6, 20),
}


def answer(clone: str, env: str, algorithm: str, words: list[str]) -> None:
    """Build a run of a clone; for each number on stdin, take that many actions and say the cost."""
    sys.path[:0] = [f"{clone}/src", f"{clone}/tests", f"{clone}/tests/support"]
    from tiny_runs import RunDirectory, Sinks, build_run, compose, resolve, validate

    composed = compose(f"{env}:random", [f"algorithm.name={algorithm}", *words])
    config = resolve(validate(composed.tree, composed.origins))
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        run = build_run(config, lambda: RunDirectory.create(here, "run"), Sinks([], None))[0]
        for line in sys.stdin:
            began, steps = time.process_time(), run.counters.env_steps
            updates = run.counters.updates
            for _ in range(int(line)):
                run.execute(run.scheduler.next_action())
            spent = time.process_time() - began
            done = run.counters.env_steps - steps, run.counters.updates - updates
            print(json.dumps([spent, *done]), flush=True)


def compare(title: str, clones: list[str], rounds: int) -> str:
    """A line: the ratios of all rounds of a case, and of the sums."""
    env, algorithm, words, count, first = CASES[title]
    command = [sys.executable, __file__, "--answer", env, algorithm, *COMMON.split()]
    sides = [
        subprocess.Popen(
            [*command, *words.split(), clone],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=clone,
        )
        for clone in clones
    ]

    def take(side: int, actions: int) -> list[float]:
        asked, answers = sides[side].stdin, sides[side].stdout
        assert asked is not None and answers is not None
        print(actions, file=asked, flush=True)
        return list(json.loads(answers.readline()))

    seconds: list[list[float]] = []
    try:
        for side in (0, 1):
            take(side, first)
        for _ in range(rounds):
            order = random.sample([0, 1], 2)
            taken = {side: take(side, count) for side in order}
            assert taken[0][1:] == taken[1][1:], f"not the same work: {taken}"
            seconds.append([taken[0][0], taken[1][0]])
    finally:
        for each in sides:
            each.kill()
    ratios = [older / newer for older, newer in seconds]
    low, middle, high = statistics.quantiles(ratios, n=4)
    whole = sum(each[0] for each in seconds) / sum(each[1] for each in seconds)
    return f"| {title} | {middle:.2f}× | {low:.2f} … {high:.2f} | {whole:.2f}× |"


def main() -> None:
    """Compare two clones in every case, or in those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clones", nargs=2, help="the older and the newer clone")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    asked = parser.parse_args()
    clones = [str(Path(each).resolve()) for each in asked.clones]
    print("| | median | quartiles | of the sums |\n|---|---|---|---|")
    for title in asked.cases:
        print(compare(title, clones, asked.rounds), flush=True)
    print(f"load at the end: {Path('/proc/loadavg').read_text().split()[:3]}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--answer"]:
        answer(sys.argv[-1], sys.argv[2], sys.argv[3], sys.argv[4:-1])
    else:
        main()
