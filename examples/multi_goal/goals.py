"""Train on the point with four goals, or take a run that did, and count the goals it reaches."""

import argparse

import gymnasium as gym
import numpy as np

import rl_lab

NAMES = ("east", "west", "north", "south")


def count_goals(policy, episodes, seed=0):
    """Which goals stochastic episodes end at: a number for each, and how many reach none."""
    env = gym.make("MultiGoal-v0")
    env.reset(seed=seed)  # later episodes go on with the same generator
    counts = np.zeros(len(NAMES), dtype=int)
    for _ in range(episodes):
        obs, _ = env.reset()
        policy.reset()
        over = False
        while not over:
            action = policy.act(obs, deterministic=False)
            obs, _, terminated, truncated, info = env.step(action)
            over = terminated or truncated
        counts += [int(info[f"goal_{index}"]) for index in range(len(NAMES))]
    return counts, episodes - counts.sum()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", default="sql", help="what to train; try ppo, or sac")
    parser.add_argument("--run", help="a finished run to count instead: @last, an id, a path")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="training steps instead of the preset's")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--runs-dir", default=None)
    words = parser.parse_args()
    run = words.run
    if run is None:
        outcome = rl_lab.train(
            f"MultiGoal-v0:{words.algorithm}",
            seed=words.seed,
            total_timesteps=words.steps,
            runs_dir=words.runs_dir,
        )
        run = str(outcome.run.path)
        print(f"pictures are in {outcome.run.path / 'pictures'}")
    policy = rl_lab.load_policy(f"{run}:last", runs_dir=words.runs_dir)
    counts, none = count_goals(policy, words.episodes)
    shown = ", ".join(f"{name} {count}" for name, count in zip(NAMES, counts, strict=True))
    print(f"{words.episodes} episodes: {shown}, none {none}")


if __name__ == "__main__":
    main()
