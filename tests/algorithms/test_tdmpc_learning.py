"""TD-MPC2 learns a system of one number and plans in it, in seconds; not from wrong actions."""

import pytest
import torch

from rl_lab.core.batch import OBS, PREVIOUS_ACTION, RESET, REWARD, TERMINATED
from rl_lab.core.schedule import at
from tiny_tdmpc import tiny_tdmpc

STEPS, ROWS, HORIZON = 250, 64, 3
STARTS = torch.tensor([-0.9, -0.6, 0.6, 0.9])
SIZES = {
    "encoder_width": 32, "units": 32, "latent": 32, "simnorm": 8, "bins": 101, "gamma": 0.8,
    "planner.candidates": 64, "planner.policy_candidates": 8, "planner.elites": 12,
    "planner.iterations": 4, "learning_rate": 3e-3,
}  # fmt: skip


def moved(x: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """An action pushes x by up to .3 within [-1, 1]; the reward is 1 - |x| afterwards."""
    return (x + 0.3 * action).clamp(-1, 1)


def windows(generator: torch.Generator) -> dict:
    x = torch.rand(ROWS, generator=generator) * 2 - 1
    obs, actions, rewards = [x], [torch.zeros(ROWS)], [torch.zeros(ROWS)]
    for _ in range(HORIZON):
        action = torch.rand(ROWS, generator=generator) * 2 - 1
        x = moved(x, action)
        obs.append(x)
        actions.append(action)
        rewards.append(1 - x.abs())
    never = torch.zeros(HORIZON + 1, ROWS, dtype=torch.bool)
    return {
        OBS: torch.stack(obs)[..., None].expand(-1, -1, 3).contiguous(),
        PREVIOUS_ACTION: torch.stack(actions)[..., None],
        REWARD: torch.stack(rewards),
        RESET: never,
        TERMINATED: never,
    }


def learned(tiny, version: str, *, late: bool = False):
    own = {key: each for key, each in SIZES.items() if version == "tdmpc2" or key != "bins"}
    if version == "tdmpc":
        own |= {"simnorm": 0}
    algorithm = tiny_tdmpc(tiny, version, "Pendulum-v1", **own).workflow
    generator = torch.Generator().manual_seed(0)
    for index in range(STEPS):
        rows = windows(generator)
        if late:
            rows[PREVIOUS_ACTION] = rows[PREVIOUS_ACTION].roll(1, 0)
        metrics = algorithm._step(rows, at(algorithm.config, index))
        algorithm.model_learner.follow(0.05)
    algorithm.step = 10**6  # the ramp of the first version is over
    return algorithm, metrics


def actions(algorithm) -> torch.Tensor:
    obs = STARTS[:, None].expand(-1, 3).contiguous()
    found = algorithm.act(obs, algorithm.initial_state(len(STARTS)), deterministic=True)
    return found.action[:, 0]


@pytest.mark.parametrize("version", ["tdmpc2", "tdmpc"])
def test_it_learns_to_go_to_the_middle(tiny, version):
    algorithm, metrics = learned(tiny, version)
    taken = actions(algorithm)
    assert (moved(STARTS, taken).abs() < STARTS.abs() - 0.15).all()
    obs = STARTS[:, None].expand(-1, 3).contiguous()
    prior = algorithm.describe(obs, None)["mean"][:, 0]
    assert (prior.sign() == -STARTS.sign()).all()  # so does the policy alone
    # Random walks have about .5 per step, the policy .8 at most: over (1 - .8) 4.
    assert 1.5 < metrics["target_value"] < 5.0


def test_from_actions_that_are_one_step_late_rewards_cannot_be_told(tiny):
    late, honest = (learned(tiny, "tdmpc2", late=each)[1]["reward"] for each in (True, False))
    assert late > 1.3 * honest
