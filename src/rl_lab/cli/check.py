"""`rl-lab check`: proofs instead of promises, for an environment, an algorithm, this machine."""

import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rl_lab.cli.arguments import RUNS, SETTINGS, Json, Plugins, RunsDir
from rl_lab.cli.printing import pairs, say, say_json, warn
from rl_lab.cli.smoke import StoppedError
from rl_lab.core.errors import UserError

if TYPE_CHECKING:
    from rl_lab.run.session import Outcome

# The first that an algorithm does not refuse: discrete actions, continuous ones, a table, arms,
# images.
STAND_INS = ("CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Bandit-v0", "PixelTrack-v0")
TINY: dict[str, Any] = {
    "environment.num_envs": 2,
    "training.total_timesteps": 1_024,
    "evaluation.every_steps": 512,
    "evaluation.episodes": 2,
    "evaluation.test_episodes": 0,
    "logging.every_steps": 1,
    "logging.tensorboard": False,
    "logging.report": False,
    "compute.compile": "off",
}

app = typer.Typer(
    help="Prove what an environment, an algorithm or this machine can do.",
    rich_markup_mode=None,
    context_settings=SETTINGS,
)


@app.command(name="env", context_settings=SETTINGS)
def environment(id: str, plugins: Plugins = None, as_json: Json = False) -> int:
    """Check what an environment returns, and prove in a second process how exactly it resumes."""
    from rl_lab.config import catalog
    from rl_lab.envs.behavior import FAIL, OK, RENDERING, WARN, Check, check_behavior
    from rl_lab.envs.check import check_env
    from rl_lab.envs.make import find

    modules = [_module_of(catalog.load_plugin(str(file))) for file in plugins or []]
    find(id)  # a wrong name is reported first
    checks = check_behavior(id)
    report = None
    if all(each.result != FAIL or each.name == RENDERING for each in checks):
        report = check_env(id, modules=modules)
        how = {"E0": "its state is captured", "E1": "its actions are replayed"}
        found = f"bit for bit, proven in a second process ({how.get(report.level)})"
        if not report.exact:
            found = f"a resumed run starts new episodes ({report.reason})"
        checks.append(Check("exact resume", OK if report.exact else WARN, found))
    failed = any(each.result == FAIL for each in checks)
    if as_json:
        tree: dict[str, Any] = {
            "id": id,
            "ok": not failed,
            "checks": [vars(each) for each in checks],
        }
        if report is not None:
            points = [
                {"point": each.name, "step": each.step, "result": each.difference}
                for each in report.points
            ]
            tree |= {"level": report.level, "exact": report.exact, "reason": report.reason}
            tree["points"] = points
        say_json(tree)
        return int(failed)
    width = max(len(each.name) for each in checks)
    for each in checks:
        say(f"{each.result:<5} {each.name:<{width}}  {each.detail}")
    warned = sum(each.result == WARN for each in checks)
    verdict = "FAILED" if failed else f"OK, {warned} warning{'s' if warned != 1 else ''}"
    say(f"\n{verdict if failed or warned else 'OK'}: {id}")
    return int(failed)


def _module_of(file: str) -> str:
    """The name under which this process has imported a file."""
    return next(
        name for name, each in sys.modules.items() if getattr(each, "__file__", None) == file
    )


@app.command(context_settings=SETTINGS)
def algorithm(name: str, plugins: Plugins = None, as_json: Json = False) -> int:
    """Prove that an interrupted run of an algorithm equals an uninterrupted one."""
    from rl_lab.config import catalog
    from rl_lab.core import registry

    files = plugins or []
    for file in files:
        catalog.load_plugin(str(file))
    registry.get("workflow", name)  # a wrong name is reported first
    refusals = []
    for id in STAND_INS:
        try:
            different = compare_interrupted(id, name, files)
        except UserError as error:
            warn(f"{id} does not do: {str(error).splitlines()[0]}")
            refusals.append(f"{id}: {error}")
            continue
        except StoppedError as stop:
            warn("interrupted")
            return stop.code
        if as_json:
            say_json({"algorithm": name, "environment": id, "exact": not different,
                      "differences": different})  # fmt: skip
        elif different:
            say(f"FAILED: after an interruption on {id}, these differ: {', '.join(different)}")
        else:
            say(f"OK: {name} on {id}: interrupted and resumed equals uninterrupted, bit for bit")
        return 1 if different else 0
    raise UserError(f"{name} runs on none of them: {'; '.join(refusals)}")


def compare_interrupted(id: str, name: str, plugins: Sequence[Path] = ()) -> list[str]:
    """Where the state and the metrics of an interrupted run differ from an uninterrupted one."""
    import torch

    from rl_lab import api
    from rl_lab.core.state import differences
    from rl_lab.records.checkpoint import CheckpointStore

    with tempfile.TemporaryDirectory(prefix="rl-lab-check-") as folder:
        root = Path(folder)
        settings = {"environment.id": id, "algorithm.name": name, **TINY}  # no preset
        train = partial(api.train, runs_dir=root, plugins=plugins, small=True, **settings)
        warn(f"[1/3] {name} on {id}, without a break")
        straight = _unless_stopped(train())
        warn(f"[2/3] {name} on {id}, interrupted half way")
        interruption = _interruption()
        broken = train(view=lambda *_: [interruption])
        if not interruption.happened:
            _unless_stopped(broken)
            raise UserError("it ended before it could be interrupted")
        warn(f"[3/3] {name} on {id}, resumed")
        torch.manual_seed(1)  # a new process would not share our random stream
        resumed = _unless_stopped(api.resume(str(broken.run.path), runs_dir=root))
        states = [CheckpointStore(each.run.checkpoints).load()[0] for each in (straight, resumed)]
        for state in states:
            state["parts"]["progress"].pop("resumes")  # the one thing that must differ
        found = differences(*states)
        if straight.run.metrics_file.read_bytes() != resumed.run.metrics_file.read_bytes():
            found.append("metrics.jsonl")
        return found


def _unless_stopped(outcome: "Outcome") -> "Outcome":
    """The outcome of a run that was not stopped from outside: half a run proves nothing."""
    if outcome.exit_code:
        raise StoppedError(outcome.exit_code)
    return outcome


def _interruption() -> Any:
    """As if the process was asked to stop half way, after a row of metrics."""
    from rl_lab.display.sinks import Sink

    class Interruption(Sink):
        happened = False

        def write(self, step: int, row: Mapping[str, float]) -> None:
            if not self.happened and step >= TINY["training.total_timesteps"] // 2:
                self.happened = True
                signal.raise_signal(signal.SIGTERM)

    return Interruption()


@app.command(context_settings=SETTINGS)
def install(runs_dir: RunsDir = RUNS, as_json: Json = False) -> int:
    """Show versions, compiler, device, and whether runs can be written."""
    import platform
    from importlib.metadata import version

    import torch

    from rl_lab.core.compiled import cache_folder, compiler
    from rl_lab.records.provenance import PACKAGES

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    obstacle = _obstacle(runs_dir)
    facts = {
        "python": f"{platform.python_version()} ({sys.executable})",
        **{name: version(name) for name in PACKAGES},
        "compiler": compiler() or "none: updates cannot be compiled (install g++)",
        "compiled": f"{cache_folder()} (what was compiled is kept there)",
        "device": f"cuda ({gpu})" if gpu else "cpu",
        "runs folder": f"{runs_dir} ({obstacle or 'writable'})",
        **_plugins(),
    }
    if as_json:
        say_json({**facts, "ok": obstacle is None})
    else:
        say(pairs(facts))
        say("\nOK" if obstacle is None else f"\nFAILED: {obstacle}")
    return 0 if obstacle is None else 1


def _plugins() -> dict[str, str]:
    """What installed packages add, by kind and name; each is imported to see that it can be."""
    from rl_lab.config import catalog  # noqa: F401  declares the names that are taken
    from rl_lab.core import registry

    found = {}
    for each in registry.plugins():
        try:
            each.load()
            state = f"from {each.package}"
        except UserError as error:
            state = str(error)
        found[f"plug-in {each.kind}.{each.name}"] = state
    return found


def _obstacle(folder: Path) -> str | None:
    """Why nothing can be written there; None if it can."""
    here = folder
    while not here.exists() and here != here.parent:
        here = here.parent
    try:
        with tempfile.NamedTemporaryFile(dir=here):
            return None
    except OSError as error:
        return f"cannot be written: {error.strerror}"
