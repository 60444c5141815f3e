"""Parts of world models from YAML: really used, trained, saved, and resumed exactly."""

import json

import pytest
import torch

from extras import installed_case
from rl_lab.algorithms.dreamer import parts as world_parts
from rl_lab.algorithms.dreamer.rssm import RSSM
from rl_lab.algorithms.dreamer.world_model import Scalar
from rl_lab.cli.main import main
from rl_lab.config.compose import compose
from rl_lab.config.resolve import resolve
from rl_lab.core import registry
from rl_lab.core.errors import ConfigError, UserError
from rl_lab.run.build import make_algorithm, make_context
from rl_lab.run.session import load_config, resume
from tiny_dreamers import SIZES
from tiny_runs import final_state, run_hash, tiny_config, tiny_run
from tiny_world_models import ONE, WORDS

DREAMER = [
    "CartPole-v1:random",
    "algorithm.name=dreamer_v3",
    *(f"algorithm.{key}={value}" for key, value in SIZES.items()),
    "training.total_timesteps=96",
    "checkpoint.every_steps=32",
]
PLANET = [
    "Pendulum-v1:random",
    "algorithm.name=planet",
    *(f"algorithm.{key}={SIZES[key]}" for key in SIZES if key != "horizon"),
    "algorithm.planner={horizon: 2, candidates: 4, elites: 2, iterations: 1}",
    "training.total_timesteps=64",
    "checkpoint.every_steps=32",
]
WORLD_MODELS = [*WORDS, ONE, "training.total_timesteps=256", "checkpoint.every_steps=128"]
RULE = "{_target_: torch.optim.AdamW, _partial_: true, weight_decay: 0.1}"
REPLACED = {
    "representation": (DREAMER, "components.representation={type: linear, units: 5}"),
    "dynamics": (DREAMER, "components.dynamics=residual"),
    "decoder": (DREAMER, "components.decoder=linear"),
    "actor": (DREAMER, "components.actor={type: mlp, units: 6, layers: 2}"),
    "critic": (DREAMER, "components.critic={type: mlp, units: 6}"),
    "returns": (DREAMER, "components.returns={type: n_step, steps: 2}"),
    "optimizer": (DREAMER, f"optimizers={{world_model: {RULE}, actor: {RULE}}}"),
    "planet": (PLANET, "components={dynamics: residual, representation: identity}"),
    "world_models": (WORLD_MODELS, "components.dynamics=mdn_gru"),
}


def workflow_of(*words):
    config = resolve(tiny_config(*words))
    context = make_context(config)
    workflow = make_algorithm(config, context)
    context.train_environment.close()
    return workflow


@pytest.mark.parametrize("name", map(installed_case, REPLACED))
def test_a_replaced_part_learns_and_resumes_exactly(tmp_path, name):
    base, words = REPLACED[name]
    plain = tiny_run(tmp_path / "plain", *base).run
    straight = tiny_run(tmp_path / "a", *base, words).run
    assert run_hash(straight) != run_hash(plain)
    other = tiny_run(tmp_path / "b", *base, words).run
    first = sorted(other.checkpoints.glob("step_*"))[0].name
    resume(f"{other.path}:{int(first.removeprefix('step_'))}", root=tmp_path / "b")
    assert run_hash(other) == run_hash(straight)
    kept = {**load_config(other).components, **load_config(other).optimizers}
    assert kept


def test_the_named_parts_are_the_ones_that_are_used():
    words = [REPLACED[name][1] for name in ("dynamics", "actor", "critic", "decoder")]
    workflow = workflow_of(*DREAMER, *words)
    assert type(workflow.world.rssm) is world_parts.ResidualRSSM
    assert type(workflow.actor) is world_parts.SizedActor
    assert workflow.actor.output.in_features == 6
    assert type(workflow.critic) is world_parts.SizedCritic
    assert type(workflow.world.decoders) is world_parts.LinearDecoder
    assert type(workflow_of(*DREAMER).world.rssm) is RSSM


def test_every_weight_of_a_replaced_part_is_trained(tmp_path):
    run = tiny_run(tmp_path, *DREAMER, REPLACED["dynamics"][1], REPLACED["representation"][1]).run
    after = final_state(run)["workflow"]["world_learner"]["module"]
    before = workflow_of(*DREAMER, REPLACED["dynamics"][1], REPLACED["representation"][1])
    for name, weight in before.world.state_dict().items():
        if "memory" in name or "encoders" in name:
            assert not torch.equal(weight, after[name]), name


class Doubled(Scalar):
    """A critic of one's own."""

    def mean(self, features):
        """Twice."""
        return 2 * super().mean(features)


class Mute(torch.nn.Module):
    """Takes anything, and cannot be asked."""

    def __init__(self, *sizes):
        super().__init__()


def test_a_part_by_its_path():
    workflow = workflow_of(*DREAMER, "components.critic={_target_: test_components.Doubled}")
    assert type(workflow.critic).__name__ == "Doubled"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["CartPole-v1:ppo_defaults", "components.critic=mlp"],
            "components.critic: no part of ppo",
        ),
        ([*DREAMER, "components.critics=mlp"], "did you mean 'critic'"),
        ([*DREAMER, "components.critic=mpl"], "unknown critic 'mpl'"),
        ([*DREAMER, "components.critic={units: 3}"], "needs a _target_"),
        ([*PLANET, "components.actor=mlp"], "no part of planet"),
        ([*DREAMER, f"optimizers.decoder={RULE}"], "no part of dreamer_v3"),
        (["CartPole-v1:dqn", f"optimizers.q={RULE}"], "no part of dqn"),
        ([*DREAMER, "network.encoder.hidden_dims=[3]"], "no effect with dreamer_v3"),
        (["FrozenLake-v1:q_learning", "network.actor.hidden_dims=[3]"], "no effect with q_learn"),
    ],
)
def test_what_would_do_nothing_is_refused(words, message):
    with pytest.raises(ConfigError, match=message) as caught:
        tiny_config(*words)
    assert len(str(caught.value).splitlines()) == 1 and "command line" in str(caught.value)


def test_a_part_that_does_not_fit_is_named():
    with pytest.raises(UserError, match=r"components\.dynamics: MixtureGRU cannot be made here"):
        workflow_of(*DREAMER, "components.dynamics=mdn_gru")
    with pytest.raises(UserError, match=r"components\.critic is a Mute, which has no 'mean'"):
        workflow_of(*DREAMER, "components.critic={_target_: test_components.Mute}")


@pytest.mark.parametrize(("words", "part"), [(DREAMER, "critic"), (PLANET, "world_model")])
def test_an_optimizer_of_torch_cannot_be_compiled(words, part):
    more = [f"optimizers.{part}={RULE}", "compute.compile=on"]
    with pytest.raises(UserError, match=rf"^optimizers\.{part} cannot be compiled: set compute"):
        workflow_of(*words, *more)


@pytest.mark.parametrize("words", [["FrozenLake-v1:q_learning"], WORDS, ["Pendulum-v1:reinforce"]])
def test_compiling_nothing_is_refused(words):
    config = tiny_config(*words, "compute.compile=on", "environment.vectorization=sync")
    with pytest.raises(UserError, match="has nothing to compile on"):
        resolve(config)


def test_config_refuses_what_train_refuses(capsys):
    assert main(["config", "FrozenLake-v1:q_learning", "compute.compile=on"]) == 2
    expected = "error: compute.compile is on, but q_learning has nothing to compile on FrozenLake"
    assert capsys.readouterr().err.startswith(expected)


def test_shipped_groups_are_the_registered_parts():
    for name in registry.names("component"):
        role, _, part = name.partition(".")
        words = [f"+components/{role}={part}"]
        tree = compose("CartPole-v1:dreamer_v3", words).tree["components"][role]
        assert tree["type"] == part
    found = compose("CartPole-v1:dreamer_v3", ["+optimizers@optimizers.actor=adamw"]).tree
    assert found["optimizers"]["actor"]["_target_"] == "torch.optim.AdamW"


# ------------------------------------------------------------------ imagine


@pytest.fixture(scope="module")
def dreamer(tmp_path_factory):
    root = tmp_path_factory.mktemp("imagine")
    tiny_run(root, *DREAMER)
    return root


def test_imagine_writes_predicted_and_true_numbers(dreamer, tmp_path, capsys):
    file = tmp_path / "dream.json"
    words = ["imagine", "@last", "--horizon", "3", "-o", str(file), "--runs-dir", str(dreamer)]
    assert main(words) == 0
    assert f"written: {file}" in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert found["horizon"] == 3 and found["seen"] == 5
    assert len(found["obs"]["true"]) == len(found["obs"]["predicted"]) == 3
    assert len(found["obs"]["true"][0]) == 4 and found["reward"]["true"] == [1.0, 1.0, 1.0]
    first = file.read_text()
    assert main(words) == 0 and file.read_text() == first


@pytest.mark.needs("matplotlib")
def test_imagine_draws_vectors_and_films_images(dreamer, tmp_path, capsys):
    picture = tmp_path / "dream.png"
    words = ["imagine", "@last", "--horizon", "3", "--runs-dir", str(dreamer), "-o"]
    assert main([*words, str(picture)]) == 0 and picture.read_bytes().startswith(b"\x89PNG")
    assert main([*words, str(tmp_path / "dream.gif")]) == 2
    assert "shows no images to film" in capsys.readouterr().err
    root = tmp_path / "images"
    tiny_run(root, *WORLD_MODELS)
    words = ["imagine", "@last", "--horizon", "3", "--runs-dir", str(root)]
    assert main([*words, "-o", str(tmp_path / "dream.gif")]) == 0
    assert (tmp_path / "dream.gif").read_bytes().startswith(b"GIF")
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out.strip().split("written")[-1].split("\n", 1)[1])
    assert said["files"][0].endswith((".mp4", ".gif"))


def test_imagine_needs_a_world_model(tmp_path, capsys):
    tiny_run(tmp_path, "CartPole-v1:ppo_defaults", "training.total_timesteps=64")
    assert main(["imagine", "@last", "--runs-dir", str(tmp_path)]) == 2
    assert "ppo has no world model to imagine with" in capsys.readouterr().err
