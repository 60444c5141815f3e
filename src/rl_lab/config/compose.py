"""From words on a command line to one plain tree, with the origin of every value.

`CartPole-v1:ppo`, `+experiment=CartPole-v1/ppo` and `--config file.yaml` all end as one file that
Hydra composes; overrides are applied on top, interpolations are resolved, old keys are renamed.
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rl_lab.config.documents import (
    COMMAND_LINE,
    Origin,
    Origins,
    composition,
    entries,
    forget,
    lines,
    origin_of,
    plain,
    read_document,
    shown,
)
from rl_lab.config.legacy.keys import upgrade
from rl_lab.config.presets import (
    PRESETS,
    Addition,
    assembled,
    find_file,
    find_preset,
    named_preset,
    search_folders,
    variant_of,
    without_preset,
)
from rl_lab.config.tree import leaves
from rl_lab.core.errors import UserError
from rl_lab.core.schema import VERSION
from rl_lab.core.values import BadValueError, whole

TOTAL, EVERY = "training.total_timesteps", "evaluation.every_steps"
VIDEO, VIDEO_EVERY = "video", "video_every"
FEWEST_EVALUATIONS = 5  # of a run that is shorter than its file says


@dataclass(frozen=True)
class Composed:
    """A plain tree, where each value came from, and notes for the user."""

    tree: dict[str, Any]
    origins: Origins
    notes: list[str] = field(default_factory=list)
    replaced: dict[str, Any] = field(default_factory=dict)  # what the files had for what was typed


def compose(
    spec: str | None = None,
    overrides: Sequence[str] = (),
    *,
    config_file: Path | None = None,
    config_dirs: Sequence[Path] = (),
    run_config: Path | None = None,
) -> Composed:
    """The tree that a command line means, or a UserError of one line.

    `run_config` is the config.yaml of a run, which may be another user's: plain values as they
    were once written, and no other file is looked for because of it.
    """
    folders = search_folders(config_dirs)
    changes = [parse_override(each) for each in overrides]
    named = [each for each in changes if _names_preset(each)]
    changes = [each for each in changes if not _names_preset(each)]
    given = [each for each in (spec, config_file, run_config, *named) if each is not None]
    if not given and not changes:
        raise UserError("nothing to run: name an experiment, such as CartPole-v1:ppo")
    if len(given) > 1:
        raise UserError(
            "give one of: an experiment such as CartPole-v1:ppo, +experiment=, --config"
        )

    notes: list[str] = []
    addition: Addition | None = None
    if config_file is not None:
        config_file = find_file(config_file)
    elif named:
        config_file = named_preset(str(named[0].value()), folders)
    elif spec is not None:
        config_file = find_preset(spec, folders)  # or a block of an environment's file, below
        if config_file is None and (built := assembled(spec, folders)) is not None:
            config_file, addition, remark = built
            notes.append(remark)
    if spec is not None and (found := variant_of(spec, folders)) is not None:
        config_file, notes = found[0], []
        block, origins = found[1]
        config = OmegaConf.create(block)
    elif config_file is not None:
        groups = [each for each in changes if _is_group(each, [config_file.parent, *folders])]
        config, origins = _compose_file(config_file, folders, groups)
        changes = [each for each in changes if each not in groups]
        if addition is not None:
            origins |= dict.fromkeys(addition.add_to(config), COMMAND_LINE)
    elif run_config is not None:
        config, origins = _as_written(run_config)
    else:
        tree: dict[str, Any] = {"version": 1}
        if spec is not None:
            tree, remark = without_preset(spec, folders)
            notes.append(remark)
        config = OmegaConf.create(tree)
        origins = {path: COMMAND_LINE for path, _ in leaves(tree) if path != "version"}

    replaced: dict[str, Any] = {}
    for change in changes:
        _apply(change, config, origins, replaced)
    tree = _resolved(config, origins)
    tree.pop("_dims", None)  # sizes come from the environment
    forget("_dims", origins)
    file = config_file or run_config
    where = f"{shown(file)}: " if file else ""
    if (version := tree.get("version", 0)) == 0:
        tree, origins, note = upgrade({k: v for k, v in tree.items() if k != "version"}, origins)
        if note:
            notes.append(f"{where}{note}")
    elif isinstance(version, int) and version > VERSION:  # its keys are unknown here: no others
        raise UserError(
            f"{where}version {version} is of a newer rl-lab (this one reads up to {VERSION}): "
            "upgrade rl-lab to use it"
        )
    _say_it_with_video_every(tree, origins)
    _follow_shorter_total(tree, origins, replaced.get(TOTAL))
    return Composed(tree, origins, notes, replaced)


def _say_it_with_video_every(tree: dict[str, Any], origins: Origins) -> None:
    """`evaluation.video: every 5 evaluations` is a spelling of `logging.video_every: 5`."""
    evaluation = tree.get("evaluation")
    if not isinstance(evaluation, dict) or VIDEO not in evaluation:
        return
    path = f"evaluation.{VIDEO}"
    asked, place = evaluation.pop(VIDEO), origin_of(path, origins)
    match = re.fullmatch(r"(?:every\s+)?(\d*)\s*(?:evaluations?)?", str(asked).strip())
    logging = tree.setdefault("logging", {})
    if match is None or isinstance(asked, bool) or not str(asked).strip():
        raise UserError(
            f"{path}: write 'every 5 evaluations', or logging.video_every=5; got {asked!r} — "
            f"{place}"
        )
    if not isinstance(logging, dict) or VIDEO_EVERY in logging:
        raise UserError(f"{path} means logging.{VIDEO_EVERY}: give one of the two — {place}")
    logging[VIDEO_EVERY] = int(match[1] or 1)
    if path in origins:
        origins[f"logging.{VIDEO_EVERY}"] = origins.pop(path)


def _follow_shorter_total(tree: dict[str, Any], origins: Origins, written: object) -> None:
    """A file's interval of evaluations is for its own total: a much shorter run chooses another."""
    training, evaluation = tree.get("training"), tree.get("evaluation")
    if not (isinstance(training, dict) and isinstance(evaluation, dict)):
        return
    try:
        before, total = whole(written), whole(training.get("total_timesteps"))
        every = whole(evaluation.get("every_steps"))
    except BadValueError:  # not given, or refused later
        return
    of_a_file = (place := origins.get(EVERY)) is not None and place.file is not None
    if of_a_file and total < before and every * FEWEST_EVALUATIONS > total:
        evaluation["every_steps"] = "auto"
        origins[EVERY] = Origin(f"auto: {TOTAL} is less than {before:,}")


# ------------------------------------------------------------------------ files


def _as_written(file: Path) -> tuple[DictConfig, Origins]:
    """The plain values of a run's config.yaml; nothing in it is composed or looked up."""
    document = read_document(file)
    if found := composition(document):
        raise UserError(f"{shown(file)}: {found} is not what a run writes: it was changed")
    places: Origins = {}
    for path, origin, _ in lines(document, file):
        places[path] = Origin(origin.place)  # no folder: code beside it is not looked for
    try:
        return OmegaConf.create(plain(document)), places
    except (OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        raise UserError(f"{shown(file)}: {_one_line(error)}") from error


def _compose_file(
    file: Path, folders: Sequence[Path], groups: Sequence[Override]
) -> tuple[DictConfig, Origins]:
    """One file with everything its `defaults:` name, and the line of each value."""
    if re.match(r"[a-z][a-z0-9+.-]+:/", str(file)):
        raise UserError(f"{file}: only files of this disk are read: download it, and look at it")
    file = file.resolve()
    if file.suffix != ".yaml":
        raise UserError(f"{shown(file)}: a config file must end in .yaml")
    places = [file.parent, *(each for each in folders if each != file.parent)]
    places += [
        each.parent for each in file.parents if each.name == PRESETS and each.parent not in places
    ]
    _read_all(file, places, set())
    words = [str(each.input_line) for each in groups]
    with _hydra(places) as search_path, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a file without `_self_` comes last, as anyone expects
        try:
            config = hydra_compose(file.stem, [search_path, *words])
            loader = GlobalHydra.instance().config_loader()
            parts = loader.compute_defaults_list(file.stem, [search_path, *words], RunMode.RUN)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
            raise UserError(f"{shown(file)}: {_one_line(error)}") from error
        except RecursionError:
            raise UserError(f"{shown(file)}: its `defaults:` lead back to itself") from None
    OmegaConf.set_struct(config, False)
    origins: Origins = {}
    for part in parts.defaults:
        path = str(part.config_path or "")
        if path and not path.startswith("hydra/"):
            source = next(p for place in places if (p := place / f"{path}.yaml").is_file())
            prefix = "" if part.package in (None, "", "_global_") else str(part.package)
            _note_lines(read_document(source), source, prefix, origins)
    return config, origins


def _note_lines(document: yaml.MappingNode, file: Path, prefix: str, origins: Origins) -> None:
    for path, origin, replaces in lines(document, file, prefix):
        if path.split(".")[0] != "defaults":
            if replaces:
                forget(path, origins)
            origins[path] = origin


def _read_all(file: Path, places: Sequence[Path], seen: set[Path]) -> None:
    """Check every file that Hydra may load, before it does: size, tags, aliases, repeated keys."""
    if file in seen:
        return
    seen.add(file)
    for entry in entries(read_document(file), "defaults"):
        pairs = entry.items() if isinstance(entry, Mapping) else [("", entry)]
        for group, options in pairs:
            folder = re.sub(r"^(override|optional)\s+", "", str(group)).split("@")[0]
            for option in options if isinstance(options, list) else [options]:
                name = f"{folder}/{option}".split("@")[0].strip("/").removesuffix(".yaml")
                for place in (file.parent, *places):
                    if (place / f"{name}.yaml").is_file():
                        _read_all((place / f"{name}.yaml").resolve(), places, seen)


@contextmanager
def _hydra(places: Sequence[Path]) -> Iterator[str]:
    """Hydra on these folders, first match wins; whatever was initialized before is put back."""
    before, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    quoted = ",".join("'file://{}'".format(str(each).replace("'", "\\'")) for each in places[1:])
    try:
        with initialize_config_dir(str(places[0]), version_base="1.3"):
            yield f"hydra.searchpath=[{quoted}]"
    finally:
        GlobalHydra.instance().hydra = before


# -------------------------------------------------------------------- overrides


def parse_override(word: str) -> Override:
    """One `key=value` in Hydra's grammar. Raises UserError."""
    try:
        found = OverridesParser.create().parse_override(word)
    except HydraException as error:
        hint = "write key=value" if "=" not in word else "quote it: 'key=\"value\"'"
        raise UserError(f"override '{word}': {_one_line(error)} ({hint})") from error
    if not found.key_or_group:
        raise UserError(f"override '{word}': write key=value")
    if found.is_sweep_override():
        raise UserError(
            f"override '{word}': several values make a sweep;"
            " write [a,b] for a list, or use `rl-lab sweep`"
        )
    return found


def _names_preset(change: Override) -> bool:
    return (
        change.key_or_group == PRESETS
        and isinstance(change.value(), str)
        and not change.is_delete()
    )


def _is_group(change: Override, places: Sequence[Path]) -> bool:
    """`environment=cartpole` chooses a file when a folder `environment/` has a `cartpole.yaml`."""
    value = change.value()
    return isinstance(value, str) and any(
        (place / change.key_or_group.split("@")[0] / f"{value}.yaml").is_file() for place in places
    )


def _apply(
    change: Override, config: DictConfig, origins: Origins, replaced: dict[str, Any]
) -> None:
    """`a.b=1` sets (also what is not there yet, as `++` does), `~a.b` removes."""
    path = str(change.key_or_group)
    try:
        if change.is_delete():
            parent, _, key = path.rpartition(".")
            block = OmegaConf.select(config, parent) if parent else config
            if block is None or key not in block:
                raise UserError(f"override '{change.input_line}': there is no '{path}' to remove")
            del block[key]
            forget(path, origins)
            return
        value, before = change.value(), _existing(path, config, change)
        replaced.setdefault(path, before)
        merge = isinstance(value, Mapping) and OmegaConf.is_dict(before)
        OmegaConf.update(config, path, value, merge=merge, force_add=True)
    except (OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"override '{change.input_line}': {_one_line(error)}") from error
    if not merge:
        forget(path, origins)
    for below, _ in leaves(value, path):
        origins[below] = COMMAND_LINE


def _existing(path: str, config: DictConfig, change: Override) -> Any:
    """What a path holds now; a plain value on the way to it would be lost, so it is refused."""
    here: Any = config
    walked: list[str] = []
    for key in path.split("."):
        if here is not None and not OmegaConf.is_config(here):
            raise UserError(
                f"override '{change.input_line}': '{'.'.join(walked)}' is {here!r}, not a block"
            )
        walked.append(key)
        here = OmegaConf.select(config, ".".join(walked), throw_on_resolution_failure=False)
    return here


def _resolved(config: DictConfig, origins: Mapping[str, Origin]) -> dict[str, Any]:
    """Plain data with every `${…}` replaced."""
    OmegaConf.register_new_resolver("add", _add, replace=True)
    try:
        tree = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        path = str(error.full_key or "")
        where = f"{path}: " if path else ""
        raise UserError(f"{where}{_one_line(error)} — {origin_of(path, origins)}") from error
    except RecursionError:
        raise UserError("an interpolation ${…} refers to itself") from None
    assert isinstance(tree, dict)
    return {str(key): each for key, each in tree.items()}


def _add(*terms: object) -> Any:
    """`${add:a,b}`."""
    return sum(terms)


def _one_line(error: Exception) -> str:
    words = [line.strip() for line in str(error).splitlines() if line.strip()]
    return words[0] if words else type(error).__name__
