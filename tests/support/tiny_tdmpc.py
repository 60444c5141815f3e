"""TD-MPC2 of a size for tests."""

import torch

SIZES = {
    "size": "own",
    "encoder_width": 8,
    "units": 8,
    "latent": 8,
    "critics": 3,
    "simnorm": 4,
    "bins": 11,
}
FIRST = {"size": "own", "encoder_width": 8, "units": 8, "latent": 8, "critics": 2}
PLANNER = {
    "planner.horizon": 3,
    "planner.candidates": 8,
    "planner.policy_candidates": 2,
    "planner.elites": 3,
    "planner.iterations": 2,
}
LEARNING = {"batch_size": 3, "learning_starts": 16, "train_every": 4, "replay_ratio": 0.125}


def tdmpc_words(version: str, **options) -> list[str]:
    sizes = SIZES if version == "tdmpc2" else FIRST
    own = {**sizes, **PLANNER, **LEARNING, **options}
    return [f"algorithm.name={version}", *(f"algorithm.{key}={own[key]}" for key in own)]


def tiny_tdmpc(tiny, version, env="Pendulum-v1", *words, **options):
    """An orchestrator by the fixture `tiny`."""
    return tiny(f"{env}:random", *tdmpc_words(version, **options), *words)


def play(orchestrator, cycles: int) -> None:
    for _ in range(cycles):
        orchestrator.execute(orchestrator.scheduler.next_action())
        while not orchestrator.scheduler.at_cycle_start:
            orchestrator.execute(orchestrator.scheduler.next_action())


def weights(module) -> torch.Tensor:
    return torch.cat([each.detach().reshape(-1) for each in module.parameters()])
