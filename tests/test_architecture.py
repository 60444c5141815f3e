"""The shape of the package: who may import whom, and what no file may do.

A rule is a function from the package's texts to its breaches. Each is tried twice: on the package
as it is, and on one that breaks it (`BREACHES`), so that no rule can go blind.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from rl_lab.algorithms.base import Algorithm, Version
from rl_lab.config.catalog import BUILT_INS
from rl_lab.core import registry

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "rl_lab"
Package = dict[str, str]  # path below src/rl_lab -> text
Breaches = list[str]  # "path: what is wrong"

# Who may import whom (design: "Layout"). A package that is not listed has no place yet.
CATALOG = "config/catalog.py"  # the one list of built-ins by name, of all layers
L1 = ("networks", "planning", "envs", "buffers", "records")
BELOW_CONFIG = {"core", *L1, "algorithms.base"}
L3 = BELOW_CONFIG | {"collect", "display", "monitoring", "config", "run"}
LAYERS: dict[str, set[str]] = {
    "core": {"core"},
    **{name: {"core", name} for name in L1},
    "collect": {"core", "collect"},
    "algorithms": {"core", "networks", "planning", "algorithms"},
    "display": {"core", "records", "display"},
    "monitoring": {"core", "records", "display", "monitoring"},
    # the phases of YAML are parsed by the scheduler that runs them
    "config": BELOW_CONFIG | {"config", "run.phases"},
    "run": L3,
    "tuning": L3 | {"tuning"},
    "datasets": L3 | {"datasets"},
    "analysis": L3 | {"analysis", "algorithms.dreamer"},  # it draws what world models imagine
    "hub": L3 | {"analysis", "hub"},  # below the interface, which loads what it downloads
    "api": L3 | {"analysis", "objects", "hub"},
    "objects": L3,
    "plugin": {"core", "algorithms.base", "display.sinks", "api"},
    "ui": L3 | {"analysis", "tuning", "ui"},
    "benchmarking": L3 | {"api", "analysis", "tuning", "algorithms.base", "benchmarking"},
    "cli": {
        *L3,
        "algorithms",
        "tuning",
        "analysis",
        "api",
        "ui",
        "hub",
        "cli",
        "benchmarking",
        "datasets",
    },
    "__main__": {"cli"},
    "__init__": {"api", "plugin", "core", "config", "run", "algorithms"},  # lazily
}

# Which third-party packages a layer may know. Gymnasium and Hydra have one home each.
NUMBERS = {"torch", "numpy"}
THIRD_PARTY: dict[str, set[str]] = {
    "envs": NUMBERS | {"gymnasium", "safetensors", "mujoco", "dm_control", "envpool"},
    "records": NUMBERS | {"safetensors", "yaml", "pandas"},
    "display": NUMBERS
    | {"yaml", "rich", "tensorboard", "wandb", "matplotlib", "PIL", "imageio_ffmpeg"}
    | {"wandb_workspaces", "pygame"},
    "config": NUMBERS | {"hydra", "omegaconf", "yaml"},
    "run": NUMBERS | {"yaml"},
    "cli": {"typer", "yaml", "torch"},
    "analysis": NUMBERS | {"matplotlib"},
    "planning": NUMBERS | {"cma"},
    "buffers": NUMBERS | {"minari"},
    "tuning": NUMBERS | {"optuna", "yaml"},
    "datasets": NUMBERS | {"gymnasium", "minari", "pyarrow"},
    "hub": NUMBERS | {"yaml", "gymnasium", "huggingface_hub", "onnx", "onnxruntime", "onnxscript"},
    "benchmarking": NUMBERS | {"matplotlib"},
    "ui": {"numpy", "starlette", "uvicorn"},
}

# The files that write to disk, and what. Everything else goes through `records/commit.py`.
WRITERS = {
    "records/commit.py": "state, and every file that must appear whole",
    "records/metrics.py": "rows, appended",
    "display/sinks.py": "the log, appended",
    "records/run_directory.py": "the lock",
    "records/mark.py": "the user's key, for nobody else to read",
    "records/index.py": "SQLite writes by itself",
    "buffers/segments.py": "the files of a disk buffer: data, each written once and whole",
    "envs/check.py": "a temporary folder for its second process",
    "display/video.py": "films, each written beside its place by its encoder",
    "tuning/driver.py": "the lock of a sweep",
    "tuning/jobs.py": "what its processes say, appended",
}
WRITING_CALLS = {"write_text", "write_bytes", "touch"}
WRITING_FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND"}
STREAM_FILES = ("cli/",)  # print and sys.stdout

JUNK_DRAWERS = {"util", "utils", "common", "helper", "helpers", "misc", "tools", "stuff"}
LONGEST = 500  # lines; a longer file needs a reason
LONGER = {
    "core/learner.py": "the only class that knows flat parameters: loss, rule, target, state",
    "tests/algorithms/test_dqn.py": "one algorithm, by hand",
    "tests/algorithms/test_tdmpc.py": "one algorithm, by hand",
    "algorithms/dreamer/dreamer.py": "three versions of one algorithm, read top to bottom",
    "api.py": "one function for each thing to do, mostly its signature and its docstring",
    "run/build.py": "the only wiring: splitting it would hide who is made where",
}
UNSAFE_MODULES = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNSAFE_CALLS = {"eval", "exec", "torch.save", "torch.load", "yaml.load", "yaml.unsafe_load"}
UNSAFE_CALLS |= {"yaml.full_load", "np.load", "numpy.load"}
# What a workflow may not reach for: it has no disk, no clock, no logger, no process.
OUTSIDE = {"os", "io", "pathlib", "shutil", "json", "time", "logging", "subprocess", "threading"}
HOW = {"loss", "losses", "network", "networks", "optimizer", "optimizers", "optimiser", "gradient"}
HOW |= {"gradients", "backward", "actor", "critic", "encoder", "learning"}
ENVIRONMENTS = {"env", "envs", "environment", "vector", "train_environment"}
HEAVY = {"torch", "numpy", "gymnasium", "hydra", "omegaconf", "yaml", "rich", "safetensors"}


@cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


def real_package() -> Package:
    return {str(p.relative_to(SOURCE)): p.read_text() for p in sorted(SOURCE.rglob("*.py"))}


def layer(path: str) -> str:
    return Path(path).parts[0].removesuffix(".py")


def imports(text: str) -> Iterator[str]:
    """Every dotted name that a file imports, at any depth: `rl_lab.core.state.Tree`."""
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            dots = "." * node.level
            yield from (f"{dots}{node.module or ''}.{each.name}" for each in node.names)


def named(text: str) -> Iterator[str]:
    """Every dotted name of this package that a file reaches by a string instead of an import.

    That is a literal such as "rl_lab.core.state:Tree", or `registry.get` of a built-in's name.
    """
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(r"rl_lab(\.\w+)+(:\w+)?", node.value):
                yield node.value.replace(":", ".")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("registry.get"):
            kind, name = (getattr(each, "value", None) for each in [*node.args, None, None][:2])
            if target := BUILT_INS.get(kind, {}).get(name):
                yield target.replace(":", ".")


def calls(text: str) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def the_import_table_holds(package: Package) -> Breaches:
    found = []
    for path, text in package.items():
        allowed = LAYERS.get(layer(path))
        if allowed is None:
            found.append(f"{path}: '{layer(path)}' has no place in LAYERS")
            continue
        names = imports(text) if path == CATALOG else chain(imports(text), named(text))
        for name in names:
            if name.startswith("."):
                found.append(f"{path}: imports {name}: write rl_lab. in full")
            if not name.startswith("rl_lab."):
                continue
            inner = name.removeprefix("rl_lab.")
            if not any(f"{inner}.".startswith(f"{each}.") for each in allowed):
                found.append(f"{path}: imports {name}")
    return found


def third_party_packages_have_their_home(package: Package) -> Breaches:
    return [
        f"{path}: imports {name}"
        for path, text in package.items()
        for name in imports(text)
        if (top := name.partition(".")[0]) not in sys.stdlib_module_names | {"rl_lab", ""}
        and top not in THIRD_PARTY.get(layer(path), NUMBERS)
    ]


def no_junk_drawers(package: Package) -> Breaches:
    return [
        f"{path}: '{part}' says nothing about what is inside"
        for path in package
        for part in Path(path).with_suffix("").parts
        if set(re.split(r"[_.]", part.lower())) & JUNK_DRAWERS
    ]


def no_file_is_too_long(package: Package) -> Breaches:
    lengths = {path: len(text.splitlines()) for path, text in package.items()}
    return [
        f"{path}: {count} lines: take something out, or give a reason in LONGER"
        for path, count in lengths.items()
        if count > LONGEST and path not in LONGER
    ]


def every_module_says_what_it_is(package: Package) -> Breaches:
    return [f"{path}: no docstring" for path, text in package.items() if not said(text)]


def said(text: str) -> str | None:
    return ast.get_docstring(parsed(text))


def nothing_unsafe_is_loaded_or_run(package: Package) -> Breaches:
    found = []
    for path, text in package.items():
        found += [
            f"{path}: imports {name}"
            for name in imports(text)
            if name.partition(".")[0] in UNSAFE_MODULES
        ]
        for name, call in calls(text):
            trusting = any(
                each.arg in ("weights_only", "allow_pickle")
                and ast.unparse(each.value) == ("False" if each.arg == "weights_only" else "True")
                for each in call.keywords
            )
            if name in UNSAFE_CALLS or trusting:
                found.append(f"{path}: calls {ast.unparse(call)[:60]}")
    return found


def only_the_command_line_prints(package: Package) -> Breaches:
    found = []
    for path, text in package.items():
        if path.startswith(STREAM_FILES):
            continue
        for node in ast.walk(parsed(text)):
            stream = isinstance(node, ast.Attribute) and ast.unparse(node) in (
                "sys.stdout",
                "sys.stderr",
            )
            prints = isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
            if stream or prints:
                found.append(f"{path}: uses {ast.unparse(node)[:40]}")
    return found


def only_writers_write(package: Package) -> Breaches:
    found = []
    for path, text in package.items():
        if path in WRITERS or path.startswith("cli/"):  # its /dev/null, looked at below
            continue
        # safetensors' `save` gives bytes, its `save_file` a file, whatever either is called here
        savers = [name for name in imports(text) if name.endswith(".save_file")]
        found += [f"{path}: imports {name}" for name in savers]
        for name, call in calls(text):
            last = name.rpartition(".")[2]
            modes = [each.value for each in call.args if isinstance(each, ast.Constant)]
            modes += [k.value.value for k in call.keywords if isinstance(k.value, ast.Constant)]
            opens = last in ("open", "fdopen") and any(
                isinstance(mode, str) and set(mode) <= set("rwabxt+") and set(mode) & set("wax+")
                for mode in modes
            )
            flags = name == "os.open" and any(flag in ast.unparse(call) for flag in WRITING_FLAGS)
            if last in WRITING_CALLS or opens or flags:
                found.append(f"{path}: {ast.unparse(call)[:60]}")
    return found


def the_command_line_writes_nothing(package: Package) -> Breaches:
    own = {path: text for path, text in package.items() if path.startswith("cli/")}
    as_others = {path.replace("cli/", "command_line/"): text for path, text in own.items()}
    return [
        each.replace("command_line/", "cli/")
        for each in only_writers_write(as_others)
        if "os.devnull" not in each
    ]


def the_orchestrator_knows_when_never_how(package: Package) -> Breaches:
    path = "run/orchestrator.py"
    tree = parsed(package[path])
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and isinstance(node.body[0], ast.Expr)
    }
    words: set[str] = set()
    for node in ast.walk(tree):
        for value in (
            getattr(node, "id", None),
            getattr(node, "attr", None),
            getattr(node, "arg", None),
            getattr(node, "name", None),
            getattr(node, "value", None) if id(node) not in docstrings else None,
        ):
            if isinstance(value, str):
                words |= set(re.split(r"[^a-z]+", re.sub(r"([A-Z])", r"_\1", value).lower()))
    found = [
        f"{path}: names '{word}'"
        for word in sorted(words & (HOW | set(registry.names("workflow"))))
    ]
    torch = [name for name in imports(package[path]) if name.startswith("torch")]
    return found + [f"{path}: imports {name}" for name in torch if name != "torch.Tensor"]


def algorithms_know_how_never_when(package: Package) -> Breaches:
    return [
        f"{path}: imports {name}"
        for path, text in package.items()
        if layer(path) == "algorithms"
        for name in imports(text)
        if name.partition(".")[0] in OUTSIDE
    ]


def one_place_steps_environments(package: Package) -> Breaches:
    return [
        f"{path}: {ast.unparse(call)[:60]}"
        for path, text in package.items()
        if layer(path) not in ("collect", "envs", "benchmarking")  # the last one times it
        for name, call in calls(text)
        if name.endswith(".step") and name.split(".")[-2] in ENVIRONMENTS
    ]


def one_file_knows_autoreset(package: Package) -> Breaches:
    return [
        f"{path}: knows about autoreset"
        for path, text in package.items()
        if path != "envs/vector.py" and re.search(r"AutoresetMode|autoreset_mode", text)
    ]


RULES: dict[str, Callable[[Package], Breaches]] = {
    rule.__name__: rule
    for rule in (
        the_import_table_holds,
        third_party_packages_have_their_home,
        no_junk_drawers,
        no_file_is_too_long,
        every_module_says_what_it_is,
        nothing_unsafe_is_loaded_or_run,
        only_the_command_line_prints,
        only_writers_write,
        the_command_line_writes_nothing,
        the_orchestrator_knows_when_never_how,
        algorithms_know_how_never_when,
        one_place_steps_environments,
        one_file_knows_autoreset,
    )
}

# (rule, file, text that is added to it): each must be found.
BREACHES = [
    (the_import_table_holds, "core/state.py", "import rl_lab.networks.mlp"),
    (the_import_table_holds, "networks/mlp.py", "from rl_lab.envs import make"),
    (the_import_table_holds, "buffers/rollout.py", "from rl_lab.records.commit import remove"),
    (the_import_table_holds, "collect/episodes.py", "from rl_lab.envs.vector import SyncVector"),
    (the_import_table_holds, "algorithms/random.py", "from rl_lab.buffers import rollout"),
    (the_import_table_holds, "algorithms/ppo.py", "def f():\n    import rl_lab.records.commit"),
    (the_import_table_holds, "algorithms/ppo.py", "from rl_lab.collect import collector"),
    (the_import_table_holds, "algorithms/ppo.py", "from .base import Algorithm"),
    (the_import_table_holds, "run/build.py", "from rl_lab.algorithms.ppo import PPO"),
    (the_import_table_holds, "run/build.py", "from rl_lab import api"),
    (the_import_table_holds, "api.py", "from rl_lab.cli import main"),
    (the_import_table_holds, "run/session.py", "locate('rl_lab.analysis.report:ReportSink')"),
    (the_import_table_holds, "run/session.py", "import_module('rl_lab.analysis.report')"),
    (the_import_table_holds, "buffers/union.py", "registry.get('workflow', 'ppo')"),
    (the_import_table_holds, "engines/local.py", '"""A new package."""'),
    (third_party_packages_have_their_home, "core/spec.py", "import gymnasium"),
    (third_party_packages_have_their_home, "envs/make.py", "from hydra import compose"),
    (third_party_packages_have_their_home, "algorithms/ppo.py", "import yaml"),
    (no_junk_drawers, "core/utils.py", ""),
    (no_junk_drawers, "core/common/batch.py", ""),
    (no_junk_drawers, "networks/model_helpers.py", ""),
    (no_file_is_too_long, "core/state.py", "#\n" * 500),
    (every_module_says_what_it_is, "core/new.py", "x = 1"),
    (nothing_unsafe_is_loaded_or_run, "core/state.py", "import pickle"),
    (nothing_unsafe_is_loaded_or_run, "core/state.py", "from dill import loads"),
    (nothing_unsafe_is_loaded_or_run, "records/commit.py", "torch.save({}, 'x')"),
    (nothing_unsafe_is_loaded_or_run, "records/commit.py", "load('x', weights_only=False)"),
    (nothing_unsafe_is_loaded_or_run, "records/commit.py", "load('x', allow_pickle=True)"),
    (nothing_unsafe_is_loaded_or_run, "records/index.py", "yaml.load('x')"),
    (nothing_unsafe_is_loaded_or_run, "run/phases.py", "eval('1')"),
    (only_the_command_line_prints, "display/terminal.py", "print('x')"),
    (only_the_command_line_prints, "run/session.py", "sys.stderr.write('x')"),
    (only_writers_write, "run/session.py", "open('x', 'w')"),
    (only_writers_write, "run/session.py", "Path('x').open(mode='ab')"),
    (only_writers_write, "records/provenance.py", "Path('x').write_text('y')"),
    (only_writers_write, "records/checkpoint.py", "os.open('x', os.O_CREAT)"),
    (only_writers_write, "envs/make.py", "from safetensors.torch import save_file as keep"),
    (the_command_line_writes_nothing, "cli/show.py", "Path('x').write_bytes(b'')"),
    (the_orchestrator_knows_when_never_how, "run/orchestrator.py", "value_loss = 1"),
    (the_orchestrator_knows_when_never_how, "run/orchestrator.py", "x = 'ppo'"),
    (the_orchestrator_knows_when_never_how, "run/orchestrator.py", "x.optimizer"),
    (the_orchestrator_knows_when_never_how, "run/orchestrator.py", "import torch"),
    (algorithms_know_how_never_when, "algorithms/ppo.py", "from pathlib import Path"),
    (algorithms_know_how_never_when, "algorithms/random.py", "import logging"),
    (one_place_steps_environments, "algorithms/ppo.py", "self.context.train_environment.step(1)"),
    (one_place_steps_environments, "run/orchestrator.py", "self.environment.step(1)"),
    (one_file_knows_autoreset, "collect/collector.py", "mode = env.metadata['autoreset_mode']"),
]


@pytest.mark.parametrize("rule", RULES)
def test_the_package_keeps_the_rule(rule):
    assert RULES[rule](real_package()) == []


@pytest.mark.parametrize(("rule", "path", "text"), BREACHES)
def test_a_breach_is_found(rule, path, text):
    package = real_package()
    known = set(rule(package))
    package[path] = f"{package.get(path, '')}\n{text}\n"
    found = set(rule(package)) - known
    assert found and all(each.startswith(f"{path}:") for each in found)


def test_every_rule_has_been_seen_to_fail():
    assert {rule.__name__ for rule, _, _ in BREACHES} == set(RULES)


@pytest.mark.parametrize("name", BUILT_INS["workflow"])
def test_every_algorithm_derives_from_algorithm_directly(name):
    found = registry.get("workflow", name)
    kind = found.algorithm if isinstance(found, Version) else found
    assert kind.__bases__ == (Algorithm,)


def test_what_is_listed_exists():
    package = real_package()
    tests = {str(p.relative_to(ROOT)) for p in ROOT.glob("tests/**/*.py")}
    assert set(WRITERS) | set(LONGER) <= set(package) | tests


def test_tests_keep_the_rules_of_length_and_names_too():
    tests = {str(p.relative_to(ROOT)): p.read_text() for p in sorted(ROOT.glob("tests/**/*.py"))}
    assert no_file_is_too_long(tests) == no_junk_drawers(tests) == []


@pytest.mark.parametrize(
    "code",
    [
        "import rl_lab",
        "import rl_lab.cli.main",
        "import rl_lab; dir(rl_lab)",
        "from rl_lab.cli.main import main; assert main(['--help']) == 0",
        "from rl_lab.cli.main import main; assert main(['train', '--help']) == 0",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code):
    shown = f"{code}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "rl_lab" in loaded
    assert not loaded & HEAVY
