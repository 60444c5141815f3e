"""Presets: `env:variant` as a file in a config folder, or as two names when there is no file."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from omegaconf import DictConfig, OmegaConf

from rl_lab.config import catalog
from rl_lab.config.documents import COMMAND_LINE, PACKAGE_CONFIGS, Origins, shown
from rl_lab.config.legacy.environment_files import (
    find_variant,
    list_variants,
    read_variant,
    variant_files,
)
from rl_lab.core import registry
from rl_lab.core.checker import config_class
from rl_lab.core.errors import UserError, did_you_mean

PRESETS = "experiment"  # the folder of presets in a config folder
WRAPPERS = "environment.wrappers"
EXAMPLES = Path("examples")  # of a source checkout
SOLVER_CONFIGS = "config"  # the folder of configs of a solver whose files are read too
DEFAULT_ALGORITHM = "ppo"
DEFAULTS = "_defaults"  # behind an algorithm: with its defaults, even where there is a preset


class Addition(NamedTuple):
    """What a name adds to a preset: a memory, or a stack of frames instead of one."""

    memory: str | None = None
    frames: int = 0

    @property
    def words(self) -> str:
        """As a part of a sentence."""
        return f"with {self.memory} memory" if self.memory else f"with {self.frames} stacked frames"

    def add_to(self, tree: DictConfig) -> list[str]:
        """Change a composed tree, and say the paths that have changed."""
        if self.memory:
            OmegaConf.update(
                tree, "network.memory", {"type": self.memory}, merge=False, force_add=True
            )
            return ["network.memory.type"]
        wrappers = [
            *(OmegaConf.select(tree, WRAPPERS) or []),
            {"id": "FrameStack", "frames": self.frames},
        ]
        OmegaConf.update(tree, WRAPPERS, wrappers, force_add=True)
        return [WRAPPERS]


def search_folders(config_dirs: Sequence[Path] = ()) -> list[Path]:
    """Where presets are looked for, first match wins: `--config-dir`, `./configs`, the package."""
    for each in config_dirs:
        if not Path(each).is_dir():
            raise UserError(f"--config-dir {each}: no such folder")
    candidates = [*map(Path, config_dirs), Path("configs"), PACKAGE_CONFIGS]
    return [each.resolve() for each in candidates if each.is_dir()]


def find_file(file: Path) -> Path:
    """A file that is named by its path; one that does not exist may be in `./examples`."""
    example = EXAMPLES / file
    return example if example.is_file() and not file.exists() else file


def list_presets(config_dirs: Sequence[Path] = ()) -> list[str]:
    """Every preset as `env:variant`, or by its plain name if it lies in no folder of an env."""
    found: dict[str, None] = {}
    for folder in search_folders(config_dirs):
        for file in sorted((folder / PRESETS).rglob("*.yaml")):
            name = file.relative_to(folder / PRESETS).with_suffix("").as_posix()
            environment, slash, variant = name.rpartition("/")
            found[f"{environment}:{variant}" if slash else name] = None
        for environment, file in variant_files([folder]):
            found |= dict.fromkeys(f"{environment}:{each}" for each in list_variants(file))
    return sorted(found)


def split_spec(spec: str) -> tuple[str, str | None]:
    """`env:variant` at the last colon; `module:Id-v0` has no variant."""
    environment, colon, variant = spec.rpartition(":")
    if colon and re.fullmatch(r"[A-Za-z_]\w*", variant) and environment:
        return environment, variant
    return spec, None


def find_preset(spec: str, folders: Sequence[Path]) -> Path | None:
    """The file of `env:variant`, or of a plain name such as `ppo_cartpole`, if there is one."""
    environment, variant = split_spec(spec)
    return _preset_file(f"{environment}/{variant}" if variant else spec, folders)


def names_algorithm(spec: str) -> bool:
    """Whether `env:variant` is a preset, or ends in the name of an algorithm."""
    variant = split_spec(spec)[1]
    folders = search_folders()
    return variant is not None and (
        _split_variant(variant.removesuffix(DEFAULTS))[0] is not None
        or _split_addition(variant) is not None
        or find_preset(spec, folders) is not None
        or variant_of(spec, folders) is not None
    )


def variant_of(
    spec: str, folders: Sequence[Path]
) -> tuple[Path, tuple[dict[str, Any], Origins]] | None:
    """The block of `env:variant` in a file of yours for its environment; your presets go before it.

    A block that names no algorithm is of the one that it is called after.
    """
    environment, variant = split_spec(spec)
    own = [each for each in folders if each != PACKAGE_CONFIGS]
    if variant is None or find_preset(spec, own) is not None:
        return None
    file = find_variant(environment, variant, [*own, Path(SOLVER_CONFIGS)])
    if file is None:
        return None
    tree, origins = read_variant(file, environment, variant)
    if "algo_id" not in tree and "name" not in (tree.get("algorithm") or {}):
        algorithm, _ = _split_variant(variant)
        if algorithm is None:
            raise UserError(
                f"{shown(file)}: the block '{variant}' names no algorithm: algo_id: ppo"
            )
        tree["algorithm"] = {**(tree.get("algorithm") or {}), "name": algorithm}
        origins["algorithm.name"] = COMMAND_LINE
    return file, (tree, origins)


def named_preset(name: str, folders: Sequence[Path]) -> Path:
    """The file of `+experiment=name`, or a UserError with the nearest presets."""
    file = _preset_file(name, folders)
    if file is None:
        presets = [each.replace(":", "/") for each in _presets_in(folders)]
        hint = did_you_mean(name, presets) or f" (known: {', '.join(presets)})"
        raise UserError(f"no preset '{name}'{hint}")
    return file


def _preset_file(name: str, folders: Sequence[Path]) -> Path | None:
    for folder in folders:
        file = folder / PRESETS / f"{name}.yaml"
        if file.is_file() and file.resolve().is_relative_to(folder.resolve()):
            return file
    return None


def _presets_in(folders: Sequence[Path]) -> list[str]:
    return list_presets([each for each in folders if each != PACKAGE_CONFIGS])


def assembled(spec: str, folders: Sequence[Path]) -> tuple[Path, Addition, str] | None:
    """`env:ppo_gru_masked` from the preset `env:ppo_masked`: its file, what is added, and a note.

    What may be added after the algorithm is a memory, or `stack4`: the last four observations.
    """
    environment, variant = split_spec(spec)
    found = _split_addition(variant or "")
    if found is None:
        return None
    base, addition = f"{environment}:{found[0]}", found[1]
    file = find_preset(base, folders)
    return None if file is None else (file, addition, f"{spec}: {base} {addition.words}")


def _split_addition(variant: str) -> tuple[str, Addition] | None:
    """`ppo_gru_masked` → `ppo_masked` and the memory `gru`."""
    for algorithm in registry.names("workflow"):
        rest = variant.removeprefix(f"{algorithm}_")
        if rest == variant:
            continue
        for memory in registry.names("memory"):
            if rest == memory or rest.startswith(f"{memory}_"):
                return algorithm + rest.removeprefix(memory), Addition(memory=memory)
        if stack := re.fullmatch(r"stack([1-9]\d*)(_.+)?", rest):
            return algorithm + (stack[2] or ""), Addition(frames=int(stack[1]))
    return None


def without_preset(spec: str, folders: Sequence[Path]) -> tuple[dict[str, Any], str]:
    """An algorithm's defaults on an environment, from the two names alone, and a note of it."""
    if spec.startswith(":") or spec.endswith(":"):
        side = "environment" if spec.startswith(":") else "algorithm"
        raise UserError(
            f"'{spec}' names no {side}: write ENV:ALGORITHM, as in CartPole-v1:{DEFAULT_ALGORITHM}"
        )
    environment, variant = split_spec(spec)
    tree: dict[str, Any] = {"version": 1, "environment": {"id": environment}}
    if variant is None:
        tree["algorithm"] = {"name": DEFAULT_ALGORITHM}
        return tree, f"no algorithm named: {DEFAULT_ALGORITHM} with its defaults on {environment}"
    algorithm, suffix = _split_variant(variant.removesuffix(DEFAULTS))
    if algorithm is None:
        presets = _presets_in(folders)
        here = [each for each in presets if each.startswith(f"{environment}:")]
        known = [*registry.names("workflow"), *(each.rpartition(":")[2] for each in here)]
        hint = did_you_mean(variant, known)
        if here and "known" not in hint:
            hint += f"; presets of {environment}: {', '.join(each.split(':')[-1] for each in here)}"
        raise UserError(f"'{spec}': no preset and no algorithm '{variant}'{hint}")
    tree["algorithm"] = {"name": algorithm}
    words = f"{algorithm} with its defaults"
    if suffix in registry.names("memory"):
        tree["network"] = {"memory": {"type": suffix}}
        words += f" and {suffix} memory"
    elif suffix:
        config: Any = config_class(catalog.algorithm_class(algorithm))
        tree["algorithm"] |= config.named_size(suffix, environment)
        words += f", and size {suffix} with what its authors learned it with,"
    why = "" if variant.endswith(DEFAULTS) else f"no preset {spec}: "
    return tree, f"{why}{words} on {environment}"


def _split_variant(variant: str) -> tuple[str | None, str | None]:
    """`ppo` → (ppo, None), `ppo_gru` → (ppo, gru), anything else → (None, None).

    What follows the algorithm is a memory, or a size: `dreamer_v3_12m`.
    """
    algorithms = registry.names("workflow")
    if variant in algorithms:
        return variant, None
    algorithm, _, suffix = variant.rpartition("_")
    if algorithm in algorithms and suffix in [*registry.names("memory"), *_sizes(algorithm)]:
        return algorithm, suffix
    return None, None


def _sizes(algorithm: str) -> tuple[str, ...]:
    """The named sizes that an algorithm has, if any."""
    config = config_class(catalog.algorithm_class(algorithm))
    names = get_args(get_type_hints(config).get("size")) if config else ()
    return tuple(name for name in names if name != "own")
