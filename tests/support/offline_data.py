"""Small datasets that scripted controllers play, one .npz file with all episodes of a task."""

from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np

COLUMNS = ("obs", "action", "reward", "terminated", "truncated", "next_obs")
GOAL_ENERGY, TORQUE = 5.0, 2.0  # of the pendulum: upright and at rest; the largest torque


def swing_up(obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Pendulum: pumps energy, then balances; a torque in [-1, 1], with a little noise."""
    cosine, sine, speed = obs
    angle = np.arctan2(sine, cosine)
    energy = speed**2 / 6 + GOAL_ENERGY * cosine
    if cosine > 0.8 and abs(speed) < 4:
        torque = -(12 * angle + 3 * speed)
    else:
        torque = 1.5 * np.sign(speed if speed else 1.0) * np.sign(GOAL_ENERGY + 0.5 - energy) * 2
    noisy = torque / TORQUE + 0.1 * rng.standard_normal()
    return np.clip([noisy], -1, 1).astype(np.float32)


def balance(obs: np.ndarray, rng: np.random.Generator) -> np.int64:
    """CartPole: keeps the pole up and the cart in the middle, 500 steps."""
    position, speed, angle, spin = obs
    return np.int64(angle + 0.5 * spin + 0.05 * position + 0.1 * speed > 0)


def anything(obs: np.ndarray, rng: np.random.Generator) -> np.int64:
    """CartPole: random actions, about 22 steps."""
    return np.int64(rng.integers(2))


def play(
    env_id: str, episodes: list[Callable[..., np.ndarray]], seed: int = 0
) -> dict[str, np.ndarray]:
    """Transitions of one episode per policy, in time order; actions as algorithms give them."""
    env, rng = gym.make(env_id), np.random.default_rng(seed)
    columns: dict[str, list] = {name: [] for name in COLUMNS}
    for number, policy in enumerate(episodes):
        obs, ended = env.reset(seed=1000 * seed + number)[0], False
        while not ended:
            action = policy(obs, rng)
            played = TORQUE * action if env_id == "Pendulum-v1" else int(action)
            after, reward, terminated, truncated, _ = env.step(played)
            row = obs, action, np.float32(reward), terminated, truncated, after
            for name, value in zip(COLUMNS, row, strict=True):
                columns[name].append(value)
            obs, ended = after, terminated or truncated
    return {name: np.array(values) for name, values in columns.items()}


def returns(arrays: dict[str, np.ndarray]) -> list[float]:
    """Of all episodes, in their order."""
    ends = np.flatnonzero(arrays["terminated"] | arrays["truncated"]) + 1
    return [float(part.sum()) for part in np.split(arrays["reward"], ends)[:-1]]


def pendulum_expert(file: Path, episodes: int = 20) -> Path:
    """Swings the pendulum up: mean return about -140. 200 transitions an episode."""
    np.savez(file, **play("Pendulum-v1", [swing_up] * episodes))
    return file


def cartpole_mixed(file: Path, rounds: int = 6) -> Path:
    """CartPole: in each round an episode of 500 good steps and about as many random ones."""
    np.savez(file, **play("CartPole-v1", ([balance] + [anything] * 22) * rounds))
    return file
