"""What `train` and `config` are asked for: an experiment, overrides, seeds and where runs are."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_lab.cli.arguments import RUNS
from rl_lab.core.errors import UserError

SMALL = ("training.total_timesteps=2_000", "evaluation.test_episodes=2", "compute.compile=off")
MOST_SEEDS = 1_000  # of one range


@dataclass(kw_only=True)
class Request:
    """The words and options of a command line."""

    words: Sequence[str] = ()
    config_file: Path | None = None
    config_dirs: Sequence[Path] = ()
    plugins: Sequence[Path] = ()
    resume: str | None = None
    fork: str | None = None
    schedules: str | None = None
    init_from_run: str | None = None
    seed: str | None = None
    total_timesteps: str | None = None
    debug: bool = False
    track: bool = False
    trust: bool = False
    runs_dir: Path = RUNS

    @property
    def spec(self) -> str | None:
        """The experiment among the words."""
        found = [word for word in self.words if not is_override(word)]
        if len(found) > 1:
            for word in found:
                if re.fullmatch(r"\w+(\.\w+)+", word):
                    raise UserError(f"'{word}' has no value: write {word}=VALUE")
            raise UserError(f"give one experiment, not '{found[0]}' and '{found[1]}'")
        return found[0] if found else None

    @property
    def overrides(self) -> list[str]:
        """Every `key=value`, those of the options included; what was typed last wins."""
        words = [word for word in self.words if is_override(word)]
        if self.debug and self.fork is None:  # a fork begins where it begins
            words = [*SMALL, *words]
        if self.total_timesteps is not None:
            words.append(f"training.total_timesteps={self.total_timesteps}")
        if self.init_from_run is not None:
            words.append(f"training.warm_start='{self.init_from_run}'")
        if self.track:
            words.append("logging.wandb.enabled=true")
        return words

    @property
    def seeds(self) -> list[int | None]:
        """The seeds asked for; None stands for the configured one."""
        if self.seed is None:
            return [None]
        return list(read_seeds(self.seed))

    def again(self, seed: int, *, fork: str | None = None) -> list[str]:
        """The words that ask for the same with this seed; `fork` instead of the run named here."""
        options: list[str] = []
        for name, values in {
            "--config": [self.config_file],
            "--config-dir": self.config_dirs,
            "--plugin": self.plugins,
            "--fork": [fork or self.fork],
            "--init-from-run": [self.init_from_run],
            "--total-timesteps": [self.total_timesteps],
            "--schedules": [self.schedules],
        }.items():
            options += [part for value in values if value for part in (name, str(value))]
        options += ["--debug"] * self.debug + ["--track"] * self.track
        options += ["--trust"] * self.trust
        return [*self.words, *options, "--seed", str(seed)]

    def configure(self, seed: int | None) -> Any:
        """The typed config with one of the seeds, and how it was composed."""
        from rl_lab.api import configure

        extra = [] if seed is None else [f"experiment.seed={seed}"]
        return configure(
            self.spec,
            [*self.overrides, *extra],
            config_file=self.config_file,
            config_dirs=self.config_dirs,
            plugins=self.plugins,
            small=self.debug and self.fork is None,
        )


def is_override(word: str) -> bool:
    """Whether a word changes the configuration: `key=value`, `+key=value` or `~key`."""
    return "=" in word or word.startswith("~")


def key_of(word: str) -> str:
    """The key of `+key=value`; empty for an experiment's name."""
    return word.partition("=")[0].lstrip("+~") if is_override(word) else ""


def read_seeds(text: str) -> list[int]:
    """`1`, `1,2,3` or `1-3` as different numbers."""
    seeds: list[int] = []
    for part in text.split(","):
        span = re.fullmatch(r"(\d+)-(\d+)", part.strip())
        first, last = (int(span[1]), int(span[2])) if span else (0, 0)
        if span and first <= last < first + MOST_SEEDS:
            seeds += range(first, last + 1)
        elif re.fullmatch(r"[+-]?\d{1,20}", part.strip()):
            seeds.append(int(part))
        else:
            raise UserError(f"--seed: write 1, 1,2,3 or 1-3, got '{text}'")
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seed: '{text}' names a seed twice")
    return seeds
