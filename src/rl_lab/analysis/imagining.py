"""What a saved world model foresees of an episode that its policy plays, beside what happens."""

import json
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_lab.algorithms.base import Algorithm
from rl_lab.algorithms.dreamer.images import is_picture
from rl_lab.algorithms.dreamer.open_loop import CONTINUES, SEEN, open_loop_pictures
from rl_lab.algorithms.dreamer.world_model import parts_of
from rl_lab.collect.collector import RolloutCollector
from rl_lab.core.batch import ACTION, NEXT_OBS, OBS, PREVIOUS_ACTION, RESET, REWARD, Batch, Obs
from rl_lab.core.errors import UserError
from rl_lab.core.picture import Film, Picture
from rl_lab.core.tree import map_leaves, picked
from rl_lab.display.pictures import render, render_film
from rl_lab.display.video import SUFFIXES, check_film
from rl_lab.records.commit import make_directory, write_atomically
from rl_lab.run.build import make_environment
from rl_lab.run.policy import LoadedPolicy

PURPOSE = "imagine"  # its own seeds: episodes that no training has seen
LONGER = 20  # times as many frames are played to find an episode that is long enough


@dataclass(frozen=True)
class Imagined:
    """A few real frames, then the prediction of the next ones. All [H, 1, …]."""

    truth: Batch  # obs and reward
    predicted: Batch  # obs, reward and the probability to continue
    pictures: dict[str, Picture]
    is_film: bool

    @property
    def horizon(self) -> int:
        """Number of predicted steps."""
        return len(self.truth[REWARD])

    def to_tree(self) -> dict[str, Any]:
        """Rewards and vectors, true and predicted, as plain numbers; images are left out."""
        pairs = {"reward": (self.truth[REWARD], self.predicted[REWARD])}
        true, guess = (_named(each[OBS]) for each in (self.truth, self.predicted))
        pairs |= {key: (true[key], guess[key]) for key in guess if guess[key].dim() < 5}
        numbers = {
            key: {"true": _numbers(each[0]), "predicted": _numbers(each[1])}
            for key, each in pairs.items()
        }
        return {"seen": SEEN, "horizon": self.horizon, **numbers} | {
            "continue": {"predicted": _numbers(self.predicted[CONTINUES])}
        }


def imagine_run(loaded: LoadedPolicy, horizon: int) -> Imagined:
    """Let the policy play, and its model foresee the same actions after the first few frames."""
    algorithm = loaded.algorithm
    if type(algorithm).imagine is Algorithm.imagine:
        raise UserError(
            f"run {loaded.run.id}: {loaded.config.algorithm.name} has no world model to imagine "
            "with (dreamer_v1, dreamer_v2, dreamer_v3, planet and world_models have one)"
        )
    rows = _played(loaded, SEEN + horizon)
    seen, rest = picked(rows, slice(0, SEEN)), picked(rows, slice(SEEN, None))
    actions = rest[PREVIOUS_ACTION]
    predicted = algorithm.imagine(horizon=len(actions), seen=seen, actions=actions)
    spaces = parts_of(loaded.context.spec.observation)
    pictures = open_loop_pictures(spaces, rest[OBS], predicted[OBS])
    truth = {OBS: rest[OBS], REWARD: rest[REWARD]}
    return Imagined(truth, predicted, pictures, any(map(is_picture, spaces.values())))


def _played(loaded: LoadedPolicy, frames: int) -> Batch:
    """The first frames [T, 1, …] of an episode, in arrival form; fewer if none has so many."""
    algorithm, best = loaded.algorithm, slice(0, 0)

    def act(obs: Obs, state: object, *, deterministic: bool) -> Any:
        return algorithm.act(obs, state, deterministic=True)

    with closing(make_environment(loaded.config, PURPOSE, 1)) as environment:
        collector = RolloutCollector(environment, device=loaded.config.experiment.device)
        for steps in (frames - 1, LONGER * frames):  # the first episode may be a short one
            played = collector.collect(act, steps=steps, state=algorithm.initial_state(1))
            rows: Batch = played.trajectory or {}
            begins = [int(each) for each in rows[RESET][:, 0].nonzero()]
            spans = [slice(*each) for each in pairwise([*begins, steps])]
            best = max(spans, key=lambda span: min(span.stop - span.start, frames - 1))
            if best.stop - best.start >= frames - 1:
                break
    episode = picked(rows, slice(best.start, min(best.stop, best.start + frames - 1)))
    if len(episode[REWARD]) < SEEN:
        raise UserError(f"run {loaded.run.id}: no episode has more than {SEEN} frames to foresee")
    first = picked(episode, slice(0, 1))
    return {
        OBS: map_leaves(_joined, first[OBS], episode[NEXT_OBS]),
        PREVIOUS_ACTION: _joined(torch.zeros_like(first[ACTION]), episode[ACTION]),
        REWARD: _joined(torch.zeros_like(first[REWARD]), episode[REWARD]),
        RESET: _joined(first[RESET], torch.zeros_like(episode[RESET])),
    }


def _joined(first: Tensor, rest: Tensor) -> Tensor:
    return torch.cat([first, rest])


def default_file(loaded: LoadedPolicy, imagined: Imagined) -> Path:
    """Into the run's `videos/`: a picture (and a film of images), or numbers without matplotlib."""
    suffix = ".png" if find_spec("matplotlib") else ".json"
    if imagined.is_film:
        suffix = next((each for each in SUFFIXES if _can_film(each)), suffix)
    return loaded.run.videos / f"imagine-{loaded.step:012d}{suffix}"


def _can_film(suffix: str) -> bool:
    try:
        check_film(Path(f"film{suffix}"))
    except UserError:
        return False
    return True


def write_imagined(imagined: Imagined, file: Path) -> list[Path]:
    """A film (.mp4, .gif), pictures (.png) or numbers (.json), as the name of the file says."""
    suffix, contents = file.suffix.lower(), {}
    if suffix == ".json":
        contents[file] = json.dumps(imagined.to_tree(), indent=2).encode()
    elif suffix == ".png":
        contents = {
            _of_part(file, each, imagined): render(p) for each, p in imagined.pictures.items()
        }
    elif suffix in SUFFIXES:
        check_film(file)
        for name, picture in imagined.pictures.items():
            for layer in picture.layers:
                if isinstance(layer, Film):
                    contents[_of_part(file, name, imagined)] = render_film(layer, suffix)[1]
        if not contents:
            raise UserError(f"'{file}': this world shows no images to film: write a .png or .json")
    else:
        raise UserError(f"'{file}': its name must end in .mp4, .gif, .png or .json")
    try:
        make_directory(file.parent)
        for path, content in contents.items():
            write_atomically(path, content)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror or error}") from error
    return list(contents)


def _of_part(file: Path, name: str, imagined: Imagined) -> Path:
    """The file itself, or one beside it for each part of a dict observation."""
    return file if len(imagined.pictures) == 1 else file.with_stem(f"{file.stem}-{name}")


def _named(obs: Obs) -> dict[str, Any]:
    return dict(obs) if isinstance(obs, dict) else {OBS: obs}


def _numbers(rows: Tensor) -> Any:
    return rows[:, 0].tolist()
