"""Names to classes: every built-in is declared here, and local code is found here."""

import sys
import zlib
from collections.abc import Iterable
from importlib import util
from pathlib import Path
from typing import Any

from rl_lab.core import registry
from rl_lab.core.errors import UserError, did_you_mean
from rl_lab.core.failure import located
from rl_lab.core.schema import AlgorithmConfig

BUILT_INS = {
    "workflow": {
        "awac": "rl_lab.algorithms.awac:AWAC",
        "bc": "rl_lab.algorithms.bc:BC",
        "brownian": "rl_lab.algorithms.brownian:Brownian",
        "cql": "rl_lab.algorithms.cql:CQL",
        "cql_discrete": "rl_lab.algorithms.cql:DiscreteCQL",
        "diffusion_policy": "rl_lab.algorithms.diffusion.diffusion_policy:DiffusionPolicy",
        "dqn": "rl_lab.algorithms.dqn:DQN",
        "dreamer_v1": "rl_lab.algorithms.dreamer.dreamer:DreamerV1",
        "dreamer_v2": "rl_lab.algorithms.dreamer.dreamer:DreamerV2",
        "dreamer_v3": "rl_lab.algorithms.dreamer.dreamer:Dreamer",
        "epsilon_greedy": "rl_lab.algorithms.bandits:EpsilonGreedy",
        "flow_policy": "rl_lab.algorithms.diffusion.diffusion_policy:FlowPolicy",
        "gradient_bandit": "rl_lab.algorithms.bandits:GradientBandit",
        "iql": "rl_lab.algorithms.iql:IQL",
        "planet": "rl_lab.algorithms.planet:PlaNet",
        "ppo": "rl_lab.algorithms.ppo:PPO",
        "q_learning": "rl_lab.algorithms.tabular:QLearning",
        "r2d2": "rl_lab.algorithms.r2d2:R2D2",
        "random": "rl_lab.algorithms.random:RandomPolicy",
        "sac": "rl_lab.algorithms.sac:SAC",
        "sarsa": "rl_lab.algorithms.tabular:Sarsa",
        "scripted": "rl_lab.algorithms.scripted:Scripted",
        "sql": "rl_lab.algorithms.sql:SQL",
        "tdmpc": "rl_lab.algorithms.tdmpc.tdmpc:TDMPC",
        "tdmpc2": "rl_lab.algorithms.tdmpc.tdmpc:TDMPC2",
        "td3": "rl_lab.algorithms.td3:TD3",
        "td3_bc": "rl_lab.algorithms.td3_bc:TD3BC",
        "thompson": "rl_lab.algorithms.bandits:Thompson",
        "ucb": "rl_lab.algorithms.bandits:UCB",
        "reinforce": "rl_lab.algorithms.reinforce:Reinforce",
        "world_models": "rl_lab.algorithms.world_models.world_models:WorldModels",
    },
    "memory": {
        "none": "rl_lab.networks.memory.recurrent:NoMemory",
        "lstm": "rl_lab.networks.memory.recurrent:LSTM",
        "gru": "rl_lab.networks.memory.recurrent:GRU",
        "trxl": "rl_lab.networks.memory.transformer:TrXL",
        "gtrxl": "rl_lab.networks.memory.transformer:GTrXL",
        "mamba": "rl_lab.networks.memory.ssm:Mamba",
        "mamba2": "rl_lab.networks.memory.ssm:Mamba2",
    },
    "encoder": {
        "auto": "rl_lab.networks.encoder:AutoEncoder",
        "conv": "rl_lab.networks.cnn:ConvEncoder",
        "impala": "rl_lab.networks.cnn:ImpalaCNN",
        "kan": "rl_lab.networks.kan:KANEncoder",
        "mlp": "rl_lab.networks.mlp:MLPEncoder",
        "mlp_large": "rl_lab.networks.mlp:MLPLarge",
        "mlp_medium": "rl_lab.networks.mlp:MLPMedium",
        "mlp_small": "rl_lab.networks.mlp:MLPSmall",
        "mlp_tiny": "rl_lab.networks.mlp:MLPTiny",
        "nature": "rl_lab.networks.cnn:NatureCNN",
        "grid": "rl_lab.networks.cnn:GridCNN",
    },
    "buffer": {
        "disk": "rl_lab.buffers.disk:DiskReplay",
        "episodes": "rl_lab.buffers.episode_replay:EpisodeReplay",
        "her": "rl_lab.buffers.hindsight:HindsightReplay",
        "offline": "rl_lab.buffers.offline:OfflineReplay",
        "prioritized": "rl_lab.buffers.prioritized:PrioritizedReplay",
        "rollout": "rl_lab.buffers.rollout:RolloutBuffer",
        "sequence": "rl_lab.buffers.sequence:SequenceReplay",
        "uniform": "rl_lab.buffers.replay_buffer:UniformReplay",
        "union": "rl_lab.buffers.union:UnionReplay",
    },
    "component": {
        "actor.mlp": "rl_lab.algorithms.dreamer.parts:SizedActor",
        "critic.mlp": "rl_lab.algorithms.dreamer.parts:SizedCritic",
        "decoder.linear": "rl_lab.algorithms.dreamer.parts:LinearDecoder",
        "dynamics.mdn_gru": "rl_lab.algorithms.dreamer.parts:MixtureGRU",
        "dynamics.residual": "rl_lab.algorithms.dreamer.parts:ResidualRSSM",
        "representation.identity": "rl_lab.algorithms.dreamer.parts:Identity",
        "representation.linear": "rl_lab.algorithms.dreamer.parts:LinearRepresentation",
        "returns.monte_carlo": "rl_lab.algorithms.dreamer.parts:monte_carlo",
        "returns.n_step": "rl_lab.algorithms.dreamer.parts:n_step",
    },
    "wrapper": {
        "ActionMask": "rl_lab.envs.wrappers.action:ActionMask",
        "ActionRemap": "rl_lab.envs.wrappers.action:ActionRemap",
        "ActionRepeat": "rl_lab.envs.wrappers.time:ActionRepeat",
        "CountBonus": "rl_lab.envs.wrappers.reward:CountBonus",
        "Crop": "rl_lab.envs.wrappers.image:Crop",
        "DiscreteEncoder": "rl_lab.envs.wrappers.discrete:DiscreteEncoder",
        "DiscretizeObservation": "rl_lab.envs.wrappers.discrete:DiscretizeObservation",
        "FlatGrid": "rl_lab.envs.minigrid:FlatGrid",
        "FrameSkip": "rl_lab.envs.wrappers.time:FrameSkip",
        "FrameStack": "rl_lab.envs.wrappers.time:FrameStack",
        "Grayscale": "rl_lab.envs.wrappers.image:Grayscale",
        "ImgObs": "rl_lab.envs.minigrid:ImgObs",
        "MaskObservation": "rl_lab.envs.wrappers.observation:MaskObservation",
        "NoisyObservation": "rl_lab.envs.wrappers.observation:NoisyObservation",
        "OneHotObservation": "rl_lab.envs.wrappers.discrete:OneHotObservation",
        "PositionOnly": "rl_lab.envs.wrappers.observation:PositionOnly",
        "RGBImgPartialObs": "rl_lab.envs.minigrid:RGBImgPartialObs",
        "RescaleAction": "rl_lab.envs.wrappers.action:RescaleAction",
        "Resize": "rl_lab.envs.wrappers.image:Resize",
        "RewardShape": "rl_lab.envs.wrappers.reward:RewardShape",
        "ScaleObservation": "rl_lab.envs.wrappers.observation:ScaleObservation",
        "SkipStart": "rl_lab.envs.wrappers.start:SkipStart",
        "StickyActions": "rl_lab.envs.wrappers.action:StickyActions",
        "TimeAware": "rl_lab.envs.wrappers.time:TimeAware",
        "VelocityOnly": "rl_lab.envs.wrappers.observation:VelocityOnly",
    },
}
for kind, targets in BUILT_INS.items():
    registry.declare(kind, targets)


def algorithm_class(algorithm: AlgorithmConfig | str) -> Any:
    """The class behind a validated `algorithm` block, or behind a registered name."""
    if isinstance(algorithm, str):
        return registry.get("workflow", algorithm)
    target = getattr(algorithm, "_target_", None)
    return find_target(target)[0] if target else registry.get("workflow", algorithm.name)


def find_target(target: str, folders: Iterable[Path] = ()) -> tuple[Any, str]:
    """The class that `module.Class` or `file.py:Class` means, and a spelling to save for later.

    Files and modules are looked up in the current folder first, then in `folders` (where the
    config file lies). The saved spelling is absolute, so that a resume works from any folder.
    """
    try:
        return _find(target, [Path.cwd(), *folders])
    except (UserError, KeyboardInterrupt):
        raise
    except Exception as error:  # the user's own file may fail in any way while it is imported
        raise UserError(f"cannot import '{target}': {located(error)}") from error


def load_plugin(written: str, folders: Iterable[Path] = ()) -> str:
    """Import a local `file.py` for the classes that it registers; its absolute path."""
    for file in (place / written for place in [Path.cwd(), *folders]):
        if file.is_file():
            try:
                _import_file(file.resolve())
            except (UserError, KeyboardInterrupt):
                raise
            except Exception as error:  # the user's own file may fail in any way
                raise UserError(f"cannot import '{written}': {located(error)}") from error
            return str(file.resolve())
    raise UserError(f"cannot find the file '{written}'")


def _find(target: str, places: list[Path]) -> tuple[Any, str]:
    if ".py:" in target:
        written, _, attribute = target.rpartition(":")
        for file in (place / written for place in places):
            if file.is_file():
                return _attribute(_import_file(file.resolve()), attribute, target), (
                    f"{file.resolve()}:{attribute}"
                )
        raise UserError(f"cannot find the file of '{target}'")
    module, _, attribute = target.replace(":", ".").rpartition(".")
    top = module.partition(".")[0]
    origin = _origin(top) if top else None
    for place in places if top else []:
        file = (place / f"{top}.py").resolve()
        if module == top and file.is_file() and origin in (None, str(file)):
            return _find(f"{file}:{attribute}", places)
        if origin is None and (place / top).is_dir():
            sys.path.append(str(place))
            break
    return registry.locate(target), target


def _origin(module: str) -> str | None:
    """The file of a module that this process has or finds by itself; None: there is none."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        return str(getattr(loaded, "__file__", ""))
    spec = util.find_spec(module)
    return None if spec is None else str(spec.origin)


def _import_file(file: Path) -> Any:
    """A module from a file, unless this process has it already."""
    for loaded in list(sys.modules.values()):
        if getattr(loaded, "__file__", None) == str(file):
            return loaded
    taken = _origin(file.stem) not in (None, str(file))  # the name is another module's
    name = f"{file.stem}_{zlib.crc32(str(file).encode()):08x}" if taken else file.stem
    spec = util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look their module up
    if name == file.stem:
        registry.local_folders.add(str(file.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _attribute(module: object, attribute: str, target: str) -> Any:
    if not hasattr(module, attribute):
        known = [each for each in vars(module) if not each.startswith("_")]
        raise UserError(f"'{target}': no '{attribute}' in it{did_you_mean(attribute, known)}")
    return getattr(module, attribute)
