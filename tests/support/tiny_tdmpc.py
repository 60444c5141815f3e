"""TD-MPC2 of a size for tests."""

import numpy as np
import torch

from rl_lab.algorithms.tdmpc.config import TDMPC2Config
from rl_lab.algorithms.tdmpc.world_model import LatentModel, Policy
from rl_lab.core.spec import Box, EnvSpec

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


def box(*shape: int, kind: type = np.float32, low: float = -1, high: float = 1) -> Box:
    bounds = (np.full(shape, each, kind) for each in (low, high))
    return Box(shape, np.dtype(kind), *bounds)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(**own) -> TDMPC2Config:
    return TDMPC2Config(**{**SIZES, **own})


SPEC = EnvSpec("small", box(3), box(2))


def networks(*, ends: bool = False, spec: EnvSpec = SPEC, **own) -> tuple[LatentModel, Policy]:
    torch.manual_seed(0)
    config = small(**own)
    return LatentModel(spec, config, ends=ends), Policy(spec.action, config)
