"""The validator: every mistake with its place, all of them at once."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

import pytest

from rl_lab.config import catalog
from rl_lab.config.compose import compose
from rl_lab.config.tree import to_tree
from rl_lab.config.validate import validate
from rl_lab.core import registry
from rl_lab.core.checker import FreeConfig, check, config_class
from rl_lab.core.errors import ConfigError
from rl_lab.core.options import option, section, variant
from rl_lab.core.schedule import Schedule
from rl_lab.core.schema import RunConfig
from rl_lab.core.values import takes_float

BASE: dict[str, Any] = {"version": 1, "environment": {"id": "CartPole-v1"}}


def put(tree: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    inner = put(dict(tree.get(head) or {}), rest, value) if rest else value
    return {**tree, head: inner}


def run(**changes: Any) -> RunConfig:
    tree = BASE
    for path, value in changes.items():
        tree = put(tree, path.replace("__", "."), value)
    return validate(tree, {})


BAD = {
    # unknown keys, near and far
    "algorithm.gama": (1, "algorithm.gama: unknown key (did you mean 'gamma'?)"),
    "algorithm.lr": (1, "algorithm.lr: unknown key (did you mean 'learning_rate'?)"),
    "algorithm.clip_ratio": (1, "algorithm.clip_ratio: unknown key (did you mean 'clip_range'?)"),
    "algorithm.optimizer.epz": (1, "algorithm.optimizer.epz: unknown key (did you mean 'eps'?)"),
    "enviroment": ({}, "enviroment: unknown key (did you mean 'environment'?)"),
    "environment.name": ("x", "environment.name: unknown key (did you mean 'id'?)"),
    "training.eval_frequency": (
        9,
        "training.eval_frequency: unknown key (did you mean 'evaluation.every_steps'?)",
    ),
    "network.memory.hidden": (
        1,
        "network.memory.hidden: unknown key (known: type)",
    ),
    # wrong types
    "algorithm.epochs": (3.5, "algorithm.epochs: must be a whole number, got 3.5"),
    "algorithm.rollout_steps": (
        "many",
        "algorithm.rollout_steps: must be a whole number, got 'many'",
    ),
    "algorithm.gamma": ("high", "algorithm.gamma: must be a number, got 'high'"),
    "algorithm.learning_rate": (
        float("nan"),
        "algorithm.learning_rate: must be a finite number, got nan",
    ),
    "algorithm.gae_lambda": ([1], "algorithm.gae_lambda: must be a number, got [1]"),
    "algorithm.target_kl": ("no", "algorithm.target_kl: must be a number or null, got 'no'"),
    "algorithm.max_grad_norm": (True, "algorithm.max_grad_norm: must be a number, got true"),
    "algorithm.normalize_advantages": (
        "bach",
        "algorithm.normalize_advantages: must be 'batch', 'rollout' or 'off', got 'bach'"
        " (did you mean 'batch'?)",
    ),
    "algorithm": (3, "algorithm: must be a block with a name, got 3"),
    "experiment.seed": ("one", "experiment.seed: must be a whole number, got 'one'"),
    "experiment.tags": ("fast", "experiment.tags: must be a list, got 'fast'"),
    "experiment.device": (None, "experiment.device: must be text, got null"),
    "training": ([], "training: must be a block of keys, got []"),
    "training.phases": ({}, "training.phases: must be a list, got {}"),
    "evaluation.deterministic": (
        "maybe",
        "evaluation.deterministic: must be true or false, got 'maybe'",
    ),
    "evaluation.stop_at": ("x", "evaluation.stop_at: must be a number or null, got 'x'"),
    "compute.threads": ("few", "compute.threads: must be 'auto' or a whole number, got 'few'"),
    "compute.compile": ("yes", "compute.compile: must be 'auto', 'on' or 'off', got 'yes'"),
    "environment.kwargs": ([1], "environment.kwargs: must be a block of keys, got [1]"),
    "network.encoder.hidden_dims": (
        [64, "wide"],
        "network.encoder.hidden_dims[1]: must be a whole number, got 'wide'",
    ),
    "logging.wandb.enabled": (1, "logging.wandb.enabled: must be true or false, got 1"),
    # names
    "algorithm.name": ("pppo", "algorithm.name: unknown algorithm 'pppo' (did you mean 'ppo'?)"),
    "network.memory": (
        "lstmm",
        "network.memory.type: unknown memory 'lstmm' (did you mean 'lstm'?)",
    ),
    "environment.wrappers": (
        [{"id": "MaskObservations"}],
        "environment.wrappers[0].id: unknown wrapper 'MaskObservations'"
        " (did you mean 'MaskObservation'?)",
    ),
    "buffers.main.type": (
        "rolout",
        "buffers.main.type: unknown buffer 'rolout' (did you mean 'rollout'?)",
    ),
    # values that cannot work
    "version": (2, "version: must be 1, got 2: update rl-lab"),
    "environment.id": ("", "environment.id: is missing"),
    "environment.num_envs": (0, "environment.num_envs: must be at least 1, got 0"),
    "training.total_timesteps": (0, "training.total_timesteps: must be at least 1, got 0"),
    "evaluation.episodes": (-1, "evaluation.episodes: must be at least 1, got -1"),
    "checkpoint.keep_last": (0, "checkpoint.keep_last: must be at least 1, got 0"),
    "algorithm.clip_range": (
        {"start": 0.2, "finish": 1, "until": 3},
        "algorithm.clip_range: not a schedule: a schedule has no 'until'",
    ),
    "algorithm.entropy_coefficient": ("lin_x", "algorithm.entropy_coefficient: not a schedule"),
    "algorithm.batch_size": (
        5000,
        "algorithm.batch_size: 5000 is not within the rollout's 1024 rows",
    ),
}


@pytest.mark.parametrize("path", BAD)
def test_each_mistake_has_its_line(path: str) -> None:
    value, expected = BAD[path]
    with pytest.raises(ConfigError) as caught:
        validate(put(BASE, path, value), {})
    assert len(caught.value.problems) == 1, caught.value.problems
    assert caught.value.problems[0].startswith(expected)
    assert caught.value.problems[0].endswith(" — default")


def test_all_problems_come_at_once() -> None:
    tree = BASE
    wrong = [path for path in BAD if path not in ("algorithm", "training", "algorithm.name")]
    wrong.remove("algorithm.batch_size")  # a check across fields, asked only of a sound config
    wrong.remove("environment.id")  # has no default to go on with
    for path in wrong:
        tree = put(tree, path, BAD[path][0])
    with pytest.raises(ConfigError) as caught:
        validate(tree, {})
    expected = {path: BAD[path][1] for path in wrong}
    del expected["network.memory.hidden"]  # there is no memory to have keys
    for line in expected.values():
        assert any(problem.startswith(line) for problem in caught.value.problems), line


def test_a_refusing_dataclass_is_asked_until_it_has_said_everything() -> None:
    block = {"gamma": 2, "epochs": 0, "clip_range": -1, "minibatches": 2, "batch_size": 64}
    with pytest.raises(ConfigError) as caught:
        validate({**BASE, "algorithm": block}, {})
    starts = [problem.split(" must")[0] for problem in caught.value.problems]
    assert starts[:3] == ["algorithm.epochs:", "algorithm.gamma:", "algorithm.clip_range:"]
    assert starts[3].startswith("algorithm: give minibatches or batch_size, not both")


def test_origins_are_file_and_line_or_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "version: 1\nenvironment:\n  id: CartPole-v1\n\nalgorithm:\n  name: ppo\n  gama: 0.9\n"
        "  batch_size: 64\ntraining:\n  phases:\n    - {hooks: [collect]}\n    - {hooks: 3}\n"
    )
    composed = compose(None, ["algorithm.minibatches=4", "trainin.x=1"], config_file=file)
    with pytest.raises(ConfigError) as caught:
        validate(composed.tree, composed.origins)
    assert caught.value.problems == [
        "trainin: unknown key (did you mean 'training'?) — command line",
        f"algorithm.gama: unknown key (did you mean 'gamma'?) — {file}:7",
        "algorithm: give minibatches or batch_size, not both — command line",
    ]


def test_of_two_options_that_exclude_each_other_the_typed_one_is_blamed(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    text = "version: 1\nenvironment: {id: CartPole-v1}\nalgorithm:\n  "
    for written, typed in (
        ("minibatches: 4", "batch_size=64"),
        ("batch_size: 64", "minibatches=4"),
    ):
        file.write_text(text + written + "\n")
        composed = compose(None, [f"algorithm.{typed}"], config_file=file)
        with pytest.raises(ConfigError, match="not both — command line"):
            validate(composed.tree, composed.origins)


def test_phase_problems_carry_their_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "version: 1\nenvironment: {id: CartPole-v1}\ntraining:\n  phases:\n"
        "    - name: a\n      duration_steps: 100\n      hooks: [collect]\n"
        "    - name: b\n      type: onlin\n      hooks: [collect]\n"
    )
    composed = compose(None, [], config_file=file)
    with pytest.raises(ConfigError, match=r"training\.phases\[1\]\.type: .*mine\.yaml:9"):
        validate(composed.tree, composed.origins)


def test_text_that_is_a_number_is_a_number() -> None:
    config = run(
        algorithm__learning_rate="3e-4",
        algorithm__rollout_steps="1_28",
        training__total_timesteps="5e3",
        evaluation__every_steps=1e4,
        evaluation__deterministic="false",
        network__encoder__hidden_dims=["32", 16.0],
        experiment__name=42,
        compute__threads="2",
    )
    assert config.algorithm.learning_rate == 3e-4 and config.algorithm.rollout_steps == 128
    assert config.training.total_timesteps == 5000 and config.evaluation.every_steps == 10_000
    assert isinstance(config.training.total_timesteps, int)
    assert config.evaluation.deterministic is False and config.experiment.name == "42"
    assert config.network.encoder.hidden_dims == [32, 16] and config.compute.threads == 2


@pytest.mark.parametrize(
    ("written", "meant"), [(True, "on"), (False, "off"), ("auto", "auto"), ("on", "on")]
)
def test_yaml_turns_on_and_off_into_booleans(written: Any, meant: str) -> None:
    assert run(compute__compile=written).compute.compile == meant


def test_a_share_of_the_rollout_and_a_number_of_rows_are_both_batch_sizes() -> None:
    assert run(algorithm__batch_size=0.25).algorithm.batch_size == 0.25
    rows = run(algorithm__batch_size="256").algorithm.batch_size
    assert rows == 256 and isinstance(rows, int)


def test_a_variant_is_chosen_by_its_name_and_keeps_it() -> None:
    config = run(network__memory="gru", algorithm__name="reinforce")
    assert config.network.memory.type == "gru" and config.network.memory.hidden_dim == 64
    assert config.algorithm.name == "reinforce"
    assert isinstance(config.algorithm, registry.get("workflow", "reinforce").Config)


def test_a_valid_config_survives_the_way_to_a_tree_and_back() -> None:
    config = run(algorithm__learning_rate="lin_1e-3", network__memory={"type": "lstm"})
    assert validate(to_tree(config), {}) == config


def workflow_floats() -> list[tuple[str, str]]:
    """Every float of every registered algorithm that is not read only once; some may be null."""
    found = []
    for name in registry.names("workflow"):
        config = config_class(registry.get("workflow", name))
        hints = get_type_hints(config) if config else {}
        for each in fields(config) if config else ():
            if takes_float(hints[each.name]) and not each.metadata.get("fixed"):
                found.append((name, each.name))
    return found


@pytest.mark.parametrize(("name", "key"), workflow_floats())
def test_every_float_of_every_algorithm_can_be_scheduled(name: str, key: str) -> None:
    ways = ["lin_0.5", {"start": 0.5, "end": 0.25, "from": 0.1, "shape": "cosine"}]
    if (name, key) == ("world_models", "temperature"):
        ways = ways[1:]  # it must not end at 0
    for written in ways:
        more = {"squashed": False} if (name, key) == ("dreamer_v1", "entropy") else {}
        tree = {**BASE, "algorithm": {"name": name, key: written, **more}}
        if "data" in catalog.algorithm_class(name).defaults.get("buffers", {}):
            tree["buffers"] = {"data": {"path": "somewhere"}}
        if key == "reconstruction_coefficient":
            tree["network"] = {"memory": {"type": "gru"}}  # whose features are decoded
        config = validate(tree, {})
        value = getattr(config.algorithm, key)
        assert isinstance(value, Schedule) and value.total == config.training.total_timesteps
        assert value(0) == 0.5 and value(10**9) == value.end


@pytest.mark.parametrize("name", ["dreamer_v1", "dreamer_v3", "planet"])  # inherited or not
def test_a_number_that_is_read_once_cannot_be_scheduled(name: str) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.unimix: must be a number, got 'lin_0.5'"):
        validate({**BASE, "algorithm": {"name": name, "unimix": "lin_0.5"}}, {})


def test_there_are_floats_to_schedule() -> None:
    found = workflow_floats()
    assert {("ppo", "learning_rate"), ("sac", "temperature"), ("sac", "target_entropy")} < {*found}
    assert ("sac", "initial_temperature") not in found and ("sac", "batch_size") not in found


def test_schedules_belong_to_the_algorithm_only() -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.stop_at: must be a number or null"):
        run(evaluation__stop_at="lin_3")
    with pytest.raises(ConfigError, match=r"algorithm\.epochs: must be a whole number"):
        run(algorithm__epochs="lin_3")


# ------------------------------------------------------------------ local code

LOCAL = """
from dataclasses import dataclass

class Free:
    def act(self, obs): ...

class Typed:
    @dataclass(frozen=True, kw_only=True)
    class Config:
        gain: float = 1.0
"""


def local(tmp_path: Path, target: str, extra: str = "") -> Path:
    file = tmp_path / "exp.yaml"
    file.write_text(
        f"version: 1\nenvironment: {{id: CartPole-v1}}\nalgorithm:\n  _target_: {target}\n{extra}"
    )
    return file


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / f"algo_{tmp_path.name}.py").write_text(LOCAL)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path / "code"


@pytest.mark.parametrize("spelling", ["{}.py:Typed", "{}.Typed", "{}:Typed"])
def test_a_target_is_found_beside_the_config_and_saved_so_that_it_is_found_again(
    elsewhere: Path, spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = spelling.format(f"algo_{elsewhere.parent.name}")
    file = local(elsewhere, target, "  gain: lin_2\n")
    composed = compose(None, [], config_file=file)
    config = validate(composed.tree, composed.origins)
    assert config.algorithm.gain(0) == 2.0 and config.algorithm.name == "Typed"
    again = validate(to_tree(config), {})  # no file beside it any more, as when resuming
    assert again == config
    assert catalog.algorithm_class(again.algorithm).__name__ == "Typed"
    assert isinstance(config.algorithm, catalog.algorithm_class(config.algorithm).Config)


def test_an_algorithm_without_config_gets_its_keys_as_they_are(elsewhere: Path) -> None:
    keys = "  gamma: '0.9'\n  rate: lin_1e-3\n  layers: [1, 2]\n  mode: fast\n"
    file = local(elsewhere, f"algo_{elsewhere.parent.name}.py:Free", keys)
    composed = compose(None, [], config_file=file)
    config = validate(composed.tree, composed.origins).algorithm
    assert isinstance(config, FreeConfig)
    assert config.gamma == 0.9 and config["layers"] == [1, 2] and config.get("none", 7) == 7
    assert config.rate(0) == 1e-3 and "mode" in config
    with pytest.raises(AttributeError, match="no key 'gama'"):
        _ = config.gama  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        config.gamma = 1  # type: ignore[misc]


def test_a_registered_algorithm_without_config_is_free_too() -> None:
    @registry.register("workflow", "plain_for_test")
    class Plain:
        pass

    try:
        assert run(algorithm={"name": "plain_for_test", "speed": "1e3"}).algorithm.speed == 1000.0
    finally:
        registry._entries["workflow"].pop("plain_for_test")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("nowhere.py:Class", "algorithm._target_: cannot find the file of 'nowhere.py:Class'"),
        ("no_such_module_at_all.Class", "algorithm._target_: cannot import"),
        ("{}.py:Typo", "algorithm._target_: '{}.py:Typo': no 'Typo' in it"),
        ("Word", "algorithm._target_: 'Word' is not a path to a class"),
        (
            "broken.py:Class",
            "algorithm._target_: cannot import 'broken.py:Class': broken.py:1: SyntaxError",
        ),
    ],
)
def test_a_target_that_cannot_be_had(elsewhere: Path, target: str, expected: str) -> None:
    (elsewhere / "broken.py").write_text("class :\n")
    name = f"algo_{elsewhere.parent.name}"
    file = local(elsewhere, target.format(name))
    composed = compose(None, [], config_file=file)
    with pytest.raises(ConfigError) as caught:
        validate(composed.tree, composed.origins)
    assert caught.value.problems[0].startswith(expected.format(name))
    assert caught.value.problems[0].endswith("exp.yaml:4")


def test_components_are_found_beside_the_config_too(elsewhere: Path) -> None:
    name = f"algo_{elsewhere.parent.name}.py"
    file = elsewhere / "exp.yaml"
    parts = f"{{eye: {{_target_: '{name}:Free'}}, hand: {{_target_: '{name}:Fre'}}}}"
    file.write_text(f"version: 1\nenvironment: {{id: CartPole-v1}}\ncomponents: {parts}\n")
    composed = compose(None, [], config_file=file)
    with pytest.raises(ConfigError, match=r"components\.hand\._target_: .*exp\.yaml:3") as caught:
        validate(composed.tree, composed.origins, existing=True)
    assert len(caught.value.problems) == 1
    del composed.tree["components"]["hand"]
    config = validate(composed.tree, composed.origins, existing=True)
    assert config.components["eye"]["_target_"] == f"{elsewhere / name}:Free"


def test_a_plugin_registers_its_names_before_they_are_looked_up(elsewhere: Path) -> None:
    name = f"plug_{elsewhere.parent.name}"
    code = "from rl_lab.core.registry import register\n@register('workflow', '{}')\nclass P: pass\n"
    (elsewhere / f"{name}.py").write_text(code.format(name))
    file = elsewhere / "exp.yaml"
    head = f"version: 1\nenvironment: {{id: CartPole-v1}}\nalgorithm: {{name: {name}}}\n"
    file.write_text(f"{head}plugins: [{name}.py]\n")
    composed = compose(None, [], config_file=file)
    try:
        config = validate(composed.tree, composed.origins)
        assert config.algorithm.name == name and config.plugins == [str(elsewhere / f"{name}.py")]
    finally:
        registry._entries["workflow"].pop(name, None)


# ------------------------------------------------- the engine on any dataclass


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int = option(1, "size")

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("size must not be negative\nsize is all wrong")


@dataclass(frozen=True, kw_only=True)
class Outer:
    must: str
    inner: Inner = section(Inner, "inner")
    maybe: Inner | None = option(None, "maybe")
    many: list[Inner] = option([], "many")
    pair: tuple[int, ...] = option((), "pair")
    table: dict[str, float] = option({}, "table")
    level: Literal[1, 2] = option(1, "level")
    memory: Any = variant("memory", {"type": "none"}, "memory")


def test_nested_containers_are_checked_through_and_through() -> None:
    tree = {
        "must": "x",
        "maybe": {"size": "2"},
        "many": [{"size": 3}],
        "pair": [1, "2"],
        "table": {"a": "1e-3"},
        "level": "2",
    }
    found = check(Outer, tree)
    assert found.maybe == Inner(size=2) and found.many == [Inner(size=3)]
    assert found.pair == (1, 2) and found.table == {"a": 1e-3} and found.level == 2


def test_nested_problems_have_nested_paths() -> None:
    tree = {
        "inner": {"size": -1},
        "many": [{}, {"sise": 1}],
        "table": {"a": "x"},
        "maybe": {"x": 1},
    }
    with pytest.raises(ConfigError) as caught:
        check(Outer, tree)
    assert caught.value.problems == [
        "must: is required",
        "inner.size: must not be negative",
        "inner.size: is all wrong",
        "maybe.x: unknown key (known: size)",
        "many[1].sise: unknown key (did you mean 'size'?)",
        "table.a: must be a number, got 'x'",
    ]


def test_what_is_read_only_once_cannot_be_scheduled() -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.optimizer\.eps: must be a number"):
        run(algorithm__optimizer={"eps": "lin_1e-5"})
    with pytest.raises(ConfigError, match=r"algorithm\.batch_size: must be"):
        run(algorithm__batch_size="lin_64")
