"""From words to a tree: three spellings, overrides, composition, origins, and hostile files."""

from pathlib import Path
from typing import Any

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from rl_lab.config import documents
from rl_lab.config.compose import compose
from rl_lab.config.documents import PACKAGE_CONFIGS, origin_of
from rl_lab.config.presets import list_presets, split_spec
from rl_lab.config.validate import validate
from rl_lab.core.errors import UserError

CARTPOLE = PACKAGE_CONFIGS / "experiment" / "CartPole-v1" / "ppo.yaml"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: str, text: str) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def load(text: str, *overrides: str) -> dict[str, Any]:
    return compose(None, overrides, config_file=write("mine.yaml", text)).tree


def failure(text: str, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load(text, *overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -------------------------------------------------------------------- spellings


@pytest.mark.parametrize("name", list_presets())
def test_three_spellings_are_one_tree_and_every_preset_is_valid(name: str) -> None:
    environment, variant = split_spec(name)
    by_name = compose(name)
    place = f"{environment}/{variant}" if variant else name  # an alias lies in no folder
    by_option = compose(None, [f"+experiment={place}"])
    file = PACKAGE_CONFIGS / "experiment" / f"{place}.yaml"
    by_file = compose(None, [], config_file=file)
    assert by_name.tree == by_option.tree == by_file.tree
    assert by_name.origins == by_option.origins == by_file.origins
    config = validate(by_name.tree, by_name.origins)
    assert by_name.notes == [] and (not variant or config.environment.id == environment)


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("CartPole-v1:ppo", ("CartPole-v1", "ppo")),
        ("dm_control/cheetah-run:sac", ("dm_control/cheetah-run", "sac")),
        ("my_module:Env-v0:ppo_gru", ("my_module:Env-v0", "ppo_gru")),
        ("my_module:Env-v0", ("my_module:Env-v0", None)),
        ("CartPole-v1", ("CartPole-v1", None)),
    ],
)
def test_a_spec_is_split_at_the_last_colon(spec: str, parts: tuple[str, str | None]) -> None:
    assert split_spec(spec) == parts


def test_without_a_preset_the_defaults_are_composed_and_said() -> None:
    composed = compose("BipedalWalker-v3:ppo_gru", ["algorithm.gamma=0.9"])
    assert composed.tree == {
        "version": 1,
        "environment": {"id": "BipedalWalker-v3"},
        "algorithm": {"name": "ppo", "gamma": 0.9},
        "network": {"memory": {"type": "gru"}},
    }
    said = "no preset BipedalWalker-v3:ppo_gru: ppo with its defaults and gru memory on "
    assert composed.notes == [f"{said}BipedalWalker-v3"]
    sized = compose("CartPole-v1:dreamer_v3_12m")
    algorithm = sized.tree["algorithm"]
    assert (algorithm["name"], algorithm["size"]) == ("dreamer_v3", "12m")
    assert algorithm["model_rate"] == 4e-5 and algorithm["batch_length"] == 64
    assert "and size 12m with what its authors learned it with, on CartPole-v1" in sized.notes[0]
    validate(sized.tree, {})
    ratios = {"dm_control/walker-walk": 1.0, "ALE/Pong-v5": 1 / 32, "CartPole-v1": 0.25}
    for environment, ratio in ratios.items():
        found = compose(f"{environment}:dreamer_v3_1m").tree["algorithm"]
        assert found["replay_ratio"] == ratio
    with pytest.raises(UserError, match="no algorithm 'dreamer_v3_own'"):
        compose("CartPole-v1:dreamer_v3_own")
    with pytest.raises(UserError, match="no algorithm 'ppo_12m'"):
        compose("CartPole-v1:ppo_12m")
    assert compose("LunarLander-v3").tree["algorithm"] == {"name": "ppo"}
    assert compose("m:Env-v0:random").tree["environment"] == {"id": "m:Env-v0"}


def test_defaults_leave_out_the_preset() -> None:
    composed = compose("CartPole-v1:ppo_defaults")
    assert composed.tree["algorithm"] == {"name": "ppo"}
    assert composed.notes == ["ppo with its defaults on CartPole-v1"]
    assert compose("CartPole-v1:ppo_gru_defaults").tree["network"] == {"memory": {"type": "gru"}}
    with pytest.raises(UserError, match="no algorithm 'masked_defaults'"):
        compose("CartPole-v1:masked_defaults")


MASKED = [{"id": "MaskObservation", "indices": [1, 3]}]
STACK = {"id": "FrameStack", "frames": 4}


@pytest.mark.parametrize(
    ("variant", "base", "memory", "added", "said"),
    [
        ("ppo_mamba2_masked", "ppo_masked", "mamba2", [], "with mamba2 memory"),
        ("ppo_gtrxl", "ppo", "gtrxl", [], "with gtrxl memory"),
        ("ppo_none_masked", "ppo_masked", "none", [], "with none memory"),
        ("ppo_stack4_masked", "ppo_masked", None, [STACK], "with 4 stacked frames"),
        ("ppo_stack4", "ppo", None, [STACK], "with 4 stacked frames"),
    ],
)
def test_a_name_with_a_memory_or_a_stack_is_a_preset_and_that(
    variant: str, base: str, memory: str | None, added: list[Any], said: str
) -> None:
    composed, plain = compose(f"CartPole-v1:{variant}"), compose(f"CartPole-v1:{base}")
    assert composed.notes == [f"CartPole-v1:{variant}: CartPole-v1:{base} {said}"]
    expected = plain.tree
    if memory:
        expected["network"] = {"memory": {"type": memory}}
    if added:
        wrappers = expected["environment"].get("wrappers", [])
        assert wrappers == (MASKED if base == "ppo_masked" else [])
        expected["environment"]["wrappers"] = [*wrappers, *added]
    assert composed.tree == expected
    validate(composed.tree, composed.origins)


def test_a_preset_that_inherits_is_extended_as_a_whole() -> None:
    composed, plain = compose("TMaze-20-v0:ppo_gtrxl"), compose("TMaze-20-v0:ppo")
    network = {**plain.tree["network"], "memory": {"type": "gtrxl"}}
    assert composed.tree == {**plain.tree, "network": network}
    assert composed.tree["environment"] == {"id": "TMaze-20-v0", "num_envs": 16}
    assert composed.notes == ["TMaze-20-v0:ppo_gtrxl: TMaze-20-v0:ppo with gtrxl memory"]


def test_a_name_may_add_to_a_preset_of_your_own() -> None:
    write("configs/experiment/My-v0/ppo_far.yaml", "version: 1\nenvironment: {id: My-v0}\n")
    composed = compose("My-v0:ppo_lstm_far")
    assert composed.tree["network"] == {"memory": {"type": "lstm"}}
    for wrong in ("ppo_lstm_near", "ppo_stack0_far", "ppo_stack_far"):
        with pytest.raises(UserError, match=f"no preset and no algorithm '{wrong}'"):
            compose(f"My-v0:{wrong}")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ("CartPole-v1:pppo", []),
            "no algorithm 'pppo' (did you mean 'ppo'?); presets of CartPole",
        ),
        (("Some-v0:ppo_lstn", []), "no algorithm 'ppo_lstn'"),
        ((None, ["+experiment=CartPole-v1/ppoo"]), "(did you mean 'CartPole-v1/ppo'?)"),
        ((None, ["+experiment=zzz"]), "no preset 'zzz' (known: "),
        ((None, ["+experiment=../../pyproject"]), "no preset '../../pyproject'"),
        ((None, []), "nothing to run"),
        (("CartPole-v1:ppo", ["+experiment=CartPole-v1/ppo"]), "give one of"),
    ],
)
def test_names_that_lead_nowhere(words: tuple[str | None, list[str]], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        compose(*words)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_the_nearest_folder_wins() -> None:
    write("configs/experiment/CartPole-v1/ppo.yaml", "version: 1\nwho: here\n")
    write("extra/experiment/CartPole-v1/ppo.yaml", "version: 1\nwho: extra\n")
    write("extra/experiment/flat.yaml", "version: 1\n")
    assert compose("CartPole-v1:ppo").tree["who"] == "here"
    assert compose("CartPole-v1:ppo", config_dirs=[Path("extra")]).tree["who"] == "extra"
    assert "flat" in list_presets([Path("extra")]) and "flat" not in list_presets()
    with pytest.raises(UserError, match="--config-dir nowhere: no such folder"):
        compose("CartPole-v1:ppo", config_dirs=[Path("nowhere")])


# ------------------------------------------------------------------ composition


def test_defaults_packages_dims_and_interpolation_as_in_hydra() -> None:
    write("configs/workflow/mine.yaml", "_target_: my_code.Mine\nrate: 1\n")
    write("configs/components/encoder/small.yaml", "width: 8\ninput_dim: 0\n")
    file = write(
        "configs/experiment/mine.yaml",
        "# @package _global_\n"
        "defaults:\n"
        "  - /workflow@algorithm: mine\n"
        "  - /components/encoder@components.eye: small\n"
        "  - _self_\n"
        "version: 1\n"
        "_dims: {obs: 4, latent: '${add:${_dims.obs}, 10}'}\n"
        "algorithm: {rate: 2}\n"
        "components: {eye: {input_dim: '${_dims.latent}'}}\n",
    )
    composed = compose(None, ["+experiment=mine"])
    assert composed.tree == {
        "version": 1,
        "algorithm": {"_target_": "my_code.Mine", "rate": 2},
        "components": {"eye": {"width": 8, "input_dim": 14}},
    }
    places = {path: str(origin) for path, origin in composed.origins.items()}
    assert places["algorithm._target_"] == "configs/workflow/mine.yaml:1"
    assert places["algorithm.rate"] == "configs/experiment/mine.yaml:8"
    assert places["components.eye.width"] == "configs/components/encoder/small.yaml:1"
    assert places["components.eye.input_dim"] == "configs/experiment/mine.yaml:9"
    assert not any(path.startswith(("_dims", "defaults")) for path in places)
    assert compose(None, ["_dims.obs=6"], config_file=file).tree["components"]["eye"] == {
        "width": 8,
        "input_dim": 16,
    }


def test_a_file_overrides_what_it_inherits_without_saying_self() -> None:
    write("base.yaml", "version: 1\nalgorithm: {a: 1, b: 2}\n")
    assert load("defaults: [base]\nalgorithm: {a: 3}\n")["algorithm"] == {"a": 3, "b": 2}


def test_a_list_that_is_replaced_leaves_no_lines_of_the_old_one() -> None:
    write("base.yaml", "version: 1\nlist: [{x: 1}, {x: 2}]\n")
    file = write("mine.yaml", "defaults: [base]\nlist:\n  - {y: 3}\n")
    origins = compose(None, [], config_file=file).origins
    places = {path: str(each) for path, each in origins.items() if path.startswith("list")}
    assert places == {"list": "mine.yaml:2", "list.0": "mine.yaml:3", "list.0.y": "mine.yaml:3"}


def test_a_config_file_that_is_not_there_may_be_an_example() -> None:
    named = Path("configs/mine.yaml")
    write("examples/configs/mine.yaml", "version: 1\nwho: example\n")
    found = compose(None, [], config_file=named)
    assert found.tree["who"] == "example"
    assert str(found.origins["who"]) == "examples/configs/mine.yaml:2"
    write("configs/mine.yaml", "version: 1\nwho: mine\n")
    assert compose(None, [], config_file=named).tree["who"] == "mine"
    with pytest.raises(UserError, match=r"configs/other\.yaml: no such file"):
        compose(None, [], config_file=Path("configs/other.yaml"))


def test_a_preset_name_does_not_lead_out_of_its_folder() -> None:
    write("outside.yaml", "version: 1\n")
    write("configs/experiment/inside.yaml", "version: 1\n")
    assert compose(None, ["+experiment=inside"]).tree == {"version": 1}
    with pytest.raises(UserError, match="no preset"):
        compose(None, ["+experiment=../../outside"])


def test_a_group_can_be_chosen_on_the_command_line() -> None:
    write("configs/environment/small.yaml", "id: Small-v0\n")
    tree = load("version: 1\n", "+environment=small", "environment.num_envs=2")
    assert tree["environment"] == {"id": "Small-v0", "num_envs": 2}


def test_merge_keys_and_anchors_work() -> None:
    text = "version: 1\na: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n"
    composed = compose(None, [], config_file=write("mine.yaml", text))
    assert composed.tree["b"] == {"x": 1, "y": 3}
    assert str(composed.origins["b.x"]) == "mine.yaml:2"
    assert str(composed.origins["b.y"]) == "mine.yaml:5"


def test_hydra_is_left_as_it_was(empty_folder: Path) -> None:
    compose("CartPole-v1:ppo")
    assert not GlobalHydra.instance().is_initialized()
    failure("version: 1\ndefaults: [nowhere]\n")
    assert not GlobalHydra.instance().is_initialized()
    with initialize_config_dir(str(empty_folder), version_base="1.3"):
        mine = GlobalHydra.instance().hydra
        compose("CartPole-v1:ppo")
        assert GlobalHydra.instance().hydra is mine


def test_odd_folder_names_are_fine() -> None:
    file = write("it's a, [folder]/my exp.v2.yaml", "version: 1\ndefaults: [base]\n")
    write("it's a, [folder]/base.yaml", "a: 1\n")
    write("o'dir, x/experiment/E-v0/p.yaml", "version: 1\nb: 1\n")
    tree = compose(None, [], config_file=file, config_dirs=[Path("o'dir, x")]).tree
    assert tree == {"version": 1, "a": 1}


# -------------------------------------------------------------------- overrides


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("a.b=3", 3),
        ("a.b=5e3", 5000.0),
        ("a.b=1_000", 1000),
        ("a.b=lin_3e-4", "lin_3e-4"),
        ("a.b=[1,2]", [1, 2]),
        ("a.b={x: 1, y: [2]}", {"x": 1, "y": [2]}),
        ("a.b='two words'", "two words"),
        ('a.b="eval/return_mean >= 900"', "eval/return_mean >= 900"),
        ("a.b=null", None),
        ("a.b=true", True),
        ("a.b=ALE/Pong-v5", "ALE/Pong-v5"),
        ("a.b=m:Env-v0", "m:Env-v0"),
        ("a.b=${version}", 1),
        ("+a.b=3", 3),
        ("++a.b=3", 3),
    ],
)
def test_override_grammar(word: str, value: Any) -> None:
    composed = compose(
        None, [word], config_file=write("mine.yaml", "version: 1\na: {b: 0, c: 1}\n")
    )
    assert composed.tree["a"] == {"b": value, "c": 1}
    assert str(origin_of("a.b", composed.origins)) == "command line"
    assert str(composed.origins["a.c"]) == "mine.yaml:2"


def test_overrides_reach_new_keys_lists_and_deletions() -> None:
    text = "version: 1\na: {b: 0, c: 1}\nlist: [{x: 1}, {x: 2}]\n"
    tree = load(text, "new.deep.key=1", "~a.b", "list.1.x=5", "a={d: 4}")
    assert tree["new"] == {"deep": {"key": 1}} and tree["a"] == {"c": 1, "d": 4}
    assert tree["list"] == [{"x": 1}, {"x": 5}]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("gamma", "override 'gamma': "),
        ("a=b >= 3", "override 'a=b >= 3': "),
        ("a=1,2", "override 'a=1,2': several values make a sweep"),
        ("~nothing", "override '~nothing': there is no 'nothing' to remove"),
        ("list.7.x=1", "override 'list.7.x=1': "),
        ("number.x=1", "override 'number.x=1': "),
        ("=3", "override '=3': "),
    ],
)
def test_bad_overrides(word: str, expected: str) -> None:
    assert failure("version: 1\nnumber: 3\nlist: [1]\n", word).startswith(expected)


# ---------------------------------------------------------------- hostile files

BOMB = "version: 1\na: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n"
    for old, new in zip("abc", "bcd", strict=True)
)  # small, with a smaller limit: a broken guard should fail the test, not hang the machine


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3\n", "mine.yaml:3: 'a' is written twice (first on line 1)"),
        ("x:\n  a: 1\n  a: 1\n", "mine.yaml:3: 'a' is written twice (first on line 2)"),
        ("a: !!python/object/apply:os.system [ls]\n", "mine.yaml:1: the YAML tag '!!python/object"),
        ("a: !mine 3\n", "mine.yaml:1: the YAML tag '!mine' is not allowed"),
        ("a: &a [*a]\n", "mine.yaml:1: an alias that contains itself"),
        (BOMB, "mine.yaml: more than 1,000 values"),
        ("a: " + "[" * 5000 + "]" * 5000, "mine.yaml: nested too deeply"),
        ("a: [1\nb: 2\n", "mine.yaml:2: bad YAML: "),
        ("a: 1\n\tb: 2\n", "mine.yaml:2: bad YAML: "),
        ("a: *nobody\n", "mine.yaml:1: bad YAML: found undefined alias"),
        ("a: 1\n---\nb: 2\n", "mine.yaml:2: bad YAML: "),
        ("", "mine.yaml: the file is empty"),
        ("[1, 2]\n", "mine.yaml:1: expected `key: value` lines"),
        ("? [a, b]\n: 1\n", "mine.yaml:1: a key must be a plain word"),
        ("x: " + "a" * 1_000_001, "mine.yaml: larger than 1 MB"),
        ("defaults: [nowhere]\n", "mine.yaml: "),
        ("defaults: [mine]\n", "mine.yaml: its `defaults:` lead back to itself"),
        ("defaults: 3\nversion: 1\n", "mine.yaml: "),
        ("version: 1\na: ${nothing.here}\n", "a: "),
        ("version: 1\na: ???\n", "a: "),
        ("version: 1\na: ${a}\n", ""),
    ],
)
def test_hostile_and_broken_files(
    text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert documents.MAX_VALUES <= 100_000
    monkeypatch.setattr(documents, "MAX_VALUES", 1_000)
    assert failure(text).startswith(expected)


def test_an_inherited_file_is_checked_before_hydra_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(documents, "MAX_VALUES", 1_000)
    write("bomb.yaml", BOMB)
    assert failure("version: 1\ndefaults: [bomb, _self_]\n").startswith("bomb.yaml: more than")
    write("configs/group/tagged.yaml", "a: !!python/name:os.system\n")
    message = failure("version: 1\ndefaults:\n  - override /group@x: tagged\n")
    assert message.startswith("configs/group/tagged.yaml:1: the YAML tag")


@pytest.mark.parametrize("name", ["missing.yaml", "mine.yml", "folder.yaml", "binary.yaml"])
def test_files_that_are_no_config(name: str) -> None:
    Path("folder.yaml").mkdir()
    Path("binary.yaml").write_bytes(b"\xff\xfe\x00")
    write("mine.yml", "version: 1\n")
    with pytest.raises(UserError, match=name) as caught:
        compose(None, [], config_file=Path(name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "every"), [("every 5 evaluations", 5), (5, 5), ("every evaluation", 1), (0, 0)]
)
def test_videos_of_evaluations_may_be_asked_for_where_evaluations_are(
    asked: object, every: int
) -> None:
    write("mine.yaml", f"version: 1\nevaluation:\n  video: {asked}\n")
    composed = compose(None, [], config_file=Path("mine.yaml"))
    assert composed.tree["logging"] == {"video_every": every}
    assert composed.tree["evaluation"] == {}
    assert str(origin_of("logging.video_every", composed.origins)).endswith("mine.yaml:3")


@pytest.mark.parametrize("asked", ["sometimes", "true", "every -1 evaluations", "''"])
def test_videos_that_nobody_can_make_sense_of(asked: str) -> None:
    message = failure(f"version: 1\nevaluation:\n  video: {asked}\n")
    assert message.startswith("evaluation.video: write 'every 5 evaluations', or logging.")


def test_videos_that_are_asked_for_twice() -> None:
    message = failure("version: 1\nevaluation: {video: 5}\nlogging: {video_every: 5}\n")
    assert message.startswith("evaluation.video means logging.video_every: give one of the two")
