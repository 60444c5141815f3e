"""`rl-lab smoke`: a small real training of every preset, random steps in every environment."""

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from rl_lab.cli.arguments import ConfigDirs, Json, count
from rl_lab.cli.printing import say, say_json, table, warn
from rl_lab.core.errors import UserError

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
ENV_STEPS = 100  # vector steps in each environment, unless fewer were asked for
NUM_ENVS = 2
SHORT: dict[str, Any] = {  # whatever the preset is, it ends soon and touches nothing outside
    "evaluation.every_steps": 0,
    "evaluation.episodes": 1,
    "evaluation.num_envs": 1,
    "evaluation.test_episodes": 1,
    "compute.compile": "off",
    "logging.tensorboard": False,
    "logging.report": False,
    "logging.wandb.enabled": False,
}


class StoppedError(Exception):
    """The user pressed Ctrl-C, or the machine wants its process back."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(f"stopped with exit code {code}")


def smoke(
    text: Annotated[str, typer.Argument(help="only what has this in its name")] = "",
    timesteps: Annotated[
        int,
        typer.Option(parser=count(1), metavar="N", help="environment steps of each training"),
    ] = 2_000,
    only_presets: Annotated[bool, typer.Option("--presets", help="train the presets only")] = False,
    only_envs: Annotated[bool, typer.Option("--envs", help="step the environments only")] = False,
    limit: Annotated[
        int, typer.Option(min=0, metavar="N", help="at most this many of each; 0: all")
    ] = 0,
    config_dirs: ConfigDirs = None,
    as_json: Json = False,
) -> int:
    """Train every preset briefly, and step every environment at random: does it run here?"""
    from rl_lab.config.presets import list_presets
    from rl_lab.envs.make import list_environments

    jobs: list[tuple[str, str, Callable[[], None]]] = []
    folders = config_dirs or []
    if only_presets or not only_envs:
        named = [each for each in list_presets(folders) if text.lower() in each.lower()]
        for name in named[: limit or None]:
            jobs.append(("train", name, _training(name, timesteps, folders)))
    if only_envs or not only_presets:
        for id in list_environments(text)[: limit or None]:
            jobs.append(("step", id, _stepping(id, timesteps)))
    if not jobs:
        raise UserError(f"nothing has '{text}' in its name: `rl-lab envs` lists what there is")
    rows = []
    for number, (what, name, job) in enumerate(jobs, 1):
        warn(f"[{number}/{len(jobs)}] {what} {name}")
        try:
            rows.append({"what": what, "name": name, **attempt(job)})
        except StoppedError as stop:
            return stop.code
    failed = sum(row["status"] == FAILED for row in rows)
    if as_json:
        say_json({"ok": failed == 0, "results": rows})
    else:
        say(table(rows, ["what", "name", "status", "seconds", "detail"]))
        skipped = sum(row["status"] == SKIPPED for row in rows)
        say(f"\n{len(rows) - failed - skipped} ok, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


def attempt(job: Callable[[], None]) -> dict[str, Any]:
    """How one job went: what is missing or refused in a clear line is skipped, the rest failed."""
    began = time.monotonic()
    status, detail = OK, ""
    try:
        job()
    except StoppedError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what smoke looks for
        status = SKIPPED if _missing(error) else FAILED
        detail = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        if isinstance(cause := _first_cause(error), ModuleNotFoundError) and "pip" not in detail:
            detail += f": pip install {cause.name}"
    lines = detail.splitlines() or [""]
    return {"status": status, "seconds": round(time.monotonic() - began, 2), "detail": lines[0]}


def _missing(error: BaseException) -> bool:
    """True when a package or a dataset is missing, or an environment is not supported."""
    return isinstance(error, UnsupportedError) or isinstance(
        _first_cause(error), ImportError | FileNotFoundError
    )


def _first_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


class UnsupportedError(UserError):
    """An environment that is refused with a reason, before its first step."""


def _training(name: str, timesteps: int, config_dirs: Sequence[Path]) -> Callable[[], None]:
    """A whole run of a preset in a folder that is gone afterwards."""

    def job() -> None:
        from rl_lab.api import configure
        from rl_lab.config.values import as_override
        from rl_lab.run.session import train

        words = [as_override(path, value) for path, value in SHORT.items()]
        words.append(f"training.total_timesteps={timesteps}")
        config, _ = configure(name, words, config_dirs=config_dirs, small=True)
        with tempfile.TemporaryDirectory(prefix="rl-lab-smoke-") as folder:
            outcome = train(config, root=Path(folder))
        if outcome.exit_code:
            raise StoppedError(outcome.exit_code)

    return job


def _stepping(id: str, timesteps: int) -> Callable[[], None]:
    """Random actions in a small vector of environments."""

    def job() -> None:
        from rl_lab.api import configure
        from rl_lab.config.resolve import resolve
        from rl_lab.run.build import make_algorithm, make_context

        steps = max(min(timesteps // NUM_ENVS, ENV_STEPS), 1)
        words = [f"environment.num_envs={NUM_ENVS}", f"algorithm.collect_steps={steps}"]
        config = resolve(configure(f"{id}:random", words)[0])
        try:
            context = make_context(config)
        except UserError as error:
            raise UnsupportedError(str(error)) from error
        with closing(context.train_environment):
            algorithm = make_algorithm(config, context)
            taken = algorithm.collect_step(0, phase={}).steps
        if taken != steps * NUM_ENVS:
            raise RuntimeError(f"{taken} steps were taken, not {steps * NUM_ENVS}")

    return job
