"""Dreamers of a size for tests."""

import torch

SIZES = {
    "deter": 8,
    "hidden": 8,
    "stoch": 3,
    "units": 8,
    "layers": 1,
    "channels": 2,
    "batch_length": 6,
    "batch_size": 3,
    "horizon": 3,
    "learning_starts": 16,
    "train_every": 4,
    "replay_ratio": 0.125,
}


def tiny_dreamer(tiny, version, env="CartPole-v1", *words, **options):
    """An orchestrator by the fixture `tiny`."""
    own = [f"algorithm.{key}={value}" for key, value in {**SIZES, **options}.items()]
    return tiny(f"{env}:random", f"algorithm.name={version}", *own, *words)


def play(orchestrator, cycles: int) -> None:
    for _ in range(cycles):
        orchestrator.execute(orchestrator.scheduler.next_action())
        while not orchestrator.scheduler.at_cycle_start:
            orchestrator.execute(orchestrator.scheduler.next_action())


def weights(module) -> torch.Tensor:
    return torch.cat([each.detach().reshape(-1) for each in module.parameters()])
