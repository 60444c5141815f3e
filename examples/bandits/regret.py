"""Train the four bandit agents on the 10-armed testbed and draw how much each of them regrets."""

import argparse
from pathlib import Path

import numpy as np

import rl_lab
from rl_lab.core.picture import Lines, Picture
from rl_lab.display.pictures import render
from rl_lab.records.metrics import read_metrics

AGENTS = ("epsilon_greedy", "ucb", "gradient_bandit", "thompson")
SHOWN = {  # file: the metric, what it is called, and where its axis begins and ends
    "regret.png": ("collect/regret_total", "regret so far", None),
    "optimal.png": ("collect/optimal", "share of best pulls, last 100", (0.0, 1.0)),
}


def train(agent, seed, pulls, bandits, runs_dir):
    """The rows of metrics.jsonl of one agent's run."""
    outcome = rl_lab.train(
        f"Bandit-v0:{agent}",
        seed=seed,
        total_timesteps=pulls * bandits,
        runs_dir=runs_dir,
        **{"environment.num_envs": bandits, "logging.every_steps": pulls * bandits // 100},
    )
    return read_metrics(outcome.run.metrics_file)


def curve(rows, metric, bandits):
    """[L, 2]: pulls of one bandit, and the metric after them."""
    return np.array([(row["step"] / bandits, row[metric]) for row in rows if metric in row])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pulls", type=int, default=1000, help="of each bandit")
    parser.add_argument("--bandits", type=int, default=1000, help="each with an agent of its own")
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the pictures")
    parser.add_argument("--runs-dir", default=None)
    words = parser.parse_args()
    runs = {
        agent: train(agent, words.seed, words.pulls, words.bandits, words.runs_dir)
        for agent in AGENTS
    }
    words.out.mkdir(parents=True, exist_ok=True)
    for file, (metric, label, limits) in SHOWN.items():
        curves = [curve(rows, metric, words.bandits) for rows in runs.values()]
        title = f"{words.bandits} bandits of ten arms, seed {words.seed}"
        picture = Picture(title, [Lines(curves, AGENTS)], "pulls", label, y_limits=limits)
        (words.out / file).write_bytes(render(picture))
        print(f"{words.out / file}: ", end="")
        print(
            ", ".join(
                f"{each} {line[-1, 1]:.2f}" for each, line in zip(AGENTS, curves, strict=True)
            )
        )


if __name__ == "__main__":
    main()
