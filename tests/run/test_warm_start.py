"""`training.warm_start` with `warm_start_parts`: which parameters of another run are taken."""

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rl_lab.cli.main import app
from rl_lab.core.errors import UserError
from rl_lab.run.build import load_weights
from tiny_runs import tiny_run


@pytest.fixture
def pair(tiny):
    """Two workflows of different weights: the state of the one, and the other."""
    first, second = tiny(), tiny("CartPole-v1:ppo_defaults", "experiment.seed=7")
    return first.workflow.get_state(), second.workflow


def taken(state, workflow, patterns):
    """Names of the parameters that became those of the state."""
    before = {name: weight.clone() for name, weight in workflow.model.named_parameters()}
    load_weights(workflow, state, patterns)
    found = set()
    for name, weight in workflow.model.named_parameters():
        same = torch.equal(weight, state["learner"]["module"][name])
        assert same or torch.equal(weight, before[name])
        if same and not torch.equal(before[name], weight):
            found.add(name)
    return found


WEIGHTS = {
    "torsos.actor.encoder.layers.0.weight",
    "torsos.critic.encoder.layers.0.weight",
    "actor.output.weight",
    "critic.weight",
}


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["*"], WEIGHTS),
        (["torsos.*"], {name for name in WEIGHTS if name.startswith("torsos")}),
        (["!critic.*"], WEIGHTS - {"critic.weight"}),
        (["torsos.*", "!torsos.critic.*"], {"torsos.actor.encoder.layers.0.weight"}),
    ],
)
def test_patterns_say_what_is_taken(pair, patterns, expected):
    assert taken(*pair, patterns) == expected  # biases begin as zeros everywhere


def test_the_optimiser_still_moves_what_was_loaded(pair):
    state, workflow = pair
    load_weights(workflow, state, ["*"])
    flat = torch.cat([each.detach().reshape(-1) for each in workflow.model.parameters()])
    assert torch.equal(flat, workflow.learner.state.flat)


def test_a_pattern_that_chooses_nothing_is_told(pair):
    with pytest.raises(UserError, match=r"no parameter is in both networks and that \['torso'\]"):
        load_weights(pair[1], pair[0], ["torso"])


LAKE = "FrozenLake-v1:q_learning"
TABLES = {
    LAKE: ["tables", "visits"],
    "Bandit-v0:epsilon_greedy": ["values", "counts"],
    "Bandit-v0:gradient_bandit": ["values", "counts", "average_reward"],
    "Bandit-v0:thompson": ["values", "counts", "averages", "squares"],
}


@pytest.mark.parametrize("spec", TABLES)
def test_tables_are_taken_and_nothing_else(tiny, spec):
    first, second = (tiny(spec, f"experiment.seed={seed}").workflow for seed in (1, 2))
    mine, theirs = (each.parts()[each.learned[0]] for each in (second, first))
    for number, name in enumerate(TABLES[spec], 1):
        getattr(theirs, name)[:] = number
    first.epsilon = first.step = 7
    state = first.get_state()
    load_weights(second, state, ["*"])
    for number, name in enumerate(TABLES[spec], 1):
        assert (getattr(mine, name) == number).all()
        assert not np.shares_memory(getattr(mine, name), getattr(theirs, name))
    assert {second.get_state()["values"].get(name) for name in ("epsilon", "step")} & {7} == set()


@pytest.mark.parametrize("spec", TABLES)
def test_states_of_earlier_versions_had_the_tables_beside_the_numbers(tiny, spec):
    first, second = (tiny(spec, f"experiment.seed={seed}").workflow for seed in (1, 2))
    part = first.learned[0]
    for array in vars(first.parts()[part]).values():
        if isinstance(array, np.ndarray):
            array[:] = 3
    state = first.get_state()
    tables = state.pop(part)
    older = {**state, "values": {**state["values"], **tables}}
    second.set_state(older)
    found = second.get_state()
    assert sorted(found) == sorted([*state, part]) and not set(tables) & set(found["values"])
    assert sorted(found[part]) == sorted(TABLES[spec])
    assert all((array == 3).all() for array in found[part].values())


def test_sarsa_begins_with_the_table_of_q_learning_without_its_visits(tiny):
    first, second = tiny(LAKE).workflow, tiny("FrozenLake-v1:sarsa").workflow
    first.table.tables[:], first.table.visits[:] = 3.0, 9
    load_weights(second, first.get_state(), ["!visits"])
    assert (second.table.tables == 3.0).all() and (second.table.visits == 0).all()


def test_a_run_begins_with_the_table_of_another(tmp_path):
    tiny_run(tmp_path, LAKE)
    words = ["training.warm_start=@last:last", "experiment.seed=3"]
    assert tiny_run(tmp_path, LAKE, *words).summary["status"] == "finished"
    with pytest.raises(UserError, match=r"tables is \[1, 16, 4\] there and \[2, 16, 4\] here"):
        tiny_run(tmp_path, LAKE, *words, "algorithm.double=true")
    with pytest.raises(UserError, match="no parameter is in both networks"):
        tiny_run(tmp_path, "CartPole-v1:ppo_defaults", *words)


def test_a_table_takes_nothing_of_a_network(pair, tiny):
    with pytest.raises(UserError, match="no parameter is in both networks"):
        load_weights(tiny(LAKE).workflow, pair[0], ["*"])


def test_another_shape_is_named_with_the_way_out(tmp_path):
    tiny_run(tmp_path)
    words = [
        "CartPole-v1:ppo_defaults",
        "training.warm_start=@last",
        "network.critic.hidden_dims=[5]",
    ]
    with pytest.raises(UserError, match="does not fit: critic") as caught:
        tiny_run(tmp_path, *words)
    assert "to leave it out: training.warm_start_parts=['!critic" in str(caught.value)
    assert "\n" not in str(caught.value)
    outcome = tiny_run(tmp_path, *words, "training.warm_start_parts=['!critic*']")
    assert outcome.summary["status"] == "finished"


def test_init_from_run_is_a_spelling_of_it(tmp_path):
    words = ["config", "CartPole-v1:ppo", "training.warm_start=@best"]
    spelled = ["train", "CartPole-v1:ppo", "--init-from-run", "@best:last", "--cfg", "job"]
    shown = [CliRunner().invoke(app, each).output for each in (words, spelled)]
    assert "warm_start: '@best'" in shown[0]
    assert "warm_start: '@best:last'" in shown[1]
    refused = CliRunner().invoke(app, ["train", "--resume", "x", "--init-from-run", "y"])
    assert "--init-from-run" in str(refused.exception)


def test_target_networks_come_along(tiny):
    words = ["CartPole-v1:random", "algorithm.name=dqn"]
    first, second = (tiny(*words, f"experiment.seed={seed}").workflow for seed in (1, 2))
    load_weights(second, first.get_state(), ["*"])
    assert torch.equal(second.learner.target_flat, first.learner.target_flat)
    assert torch.equal(second.learner.target_flat, second.learner.state.flat)
