"""Evaluation of what was learned from a dataset: normalized, and without any influence on it."""

import json

import pytest

from rl_lab.api import evaluate
from rl_lab.cli.main import main
from rl_lab.core.state import fingerprint
from rl_lab.datasets.folder import Folder
from rl_lab.datasets.make import record
from rl_lab.datasets.record import Recipe
from rl_lab.records.checkpoint import CheckpointStore
from rl_lab.run.normalized import normalized_return, references_of
from rl_lab.run.session import load_config
from tiny_runs import tiny_run

SMALL = [
    "Pendulum-v1:td3",
    "environment.max_episode_steps=20",
    "network.actor.hidden_dims=[8]",
    "network.critic.hidden_dims=[8]",
    "algorithm.batch_size=8",
    "evaluation.every_steps=0",
    "evaluation.num_envs=1",
    "checkpoint.every_updates=10",
    "logging.every_updates=5",
    "buffers={data: {type: offline, path: swing}}",
]
LEARN = "{name: learn, type: offline, buffer: data, duration_updates: 10, hooks: [update]}"
LOOK = "{name: look, type: eval_only, hooks: [evaluate], duration_cycles: 1}"


@pytest.fixture
def swing(pendulum):
    recipe = Recipe(episodes=4, batch=2, references=2, random=True)
    record(str(pendulum.path), pendulum.path.parent, "swing", recipe)
    return Folder.open("swing")


def test_the_scale_by_hand():
    known = {"random": -1200.0, "expert": -200.0}
    # -450 is 750 above random, of 1000 between the two
    assert normalized_return(-450.0, known) == pytest.approx(75.0)
    assert normalized_return(-1200.0, known) == 0.0
    assert normalized_return(-150.0, known) == pytest.approx(105.0)


def test_evaluations_tell_a_normalized_return(tmp_path, swing, capsys):
    phases = f"training.phases=[{LEARN}, {LOOK}, {LEARN}, {LOOK}]"
    outcome = tiny_run(tmp_path / "runs", *SMALL, phases)
    known = swing.about["references"]
    assert references_of(load_config(outcome.run)) == {k: known[k] for k in ("random", "expert")}
    rows = [json.loads(line) for line in outcome.run.metrics_file.read_text().splitlines()]
    seen = [row for row in rows if "eval/normalized_return" in row]
    assert len(seen) == 2
    for row in seen:
        expected = normalized_return(row["eval/return_mean"], known)
        assert row["eval/normalized_return"] == pytest.approx(expected)
    test = outcome.summary["test"]["last"]
    expected = normalized_return(test["return_mean"], known)
    assert test["normalized_return"] == pytest.approx(expected)
    found = evaluate(outcome.run.path, episodes=2, seed=1)
    assert found.summary()["normalized_return"] == pytest.approx(
        normalized_return(found.return_mean, known)
    )
    capsys.readouterr()
    assert main(["evaluate", str(outcome.run.path), "--episodes", "2", "--seed", "1"]) == 0
    assert f"· normalized {found.summary()['normalized_return']:.1f} ·" in capsys.readouterr().out


def test_a_run_without_references_says_nothing(tmp_path, pendulum):
    recipe = Recipe(episodes=4, batch=2, references=0, random=True)
    record(str(pendulum.path), pendulum.path.parent, "swing", recipe)
    outcome = tiny_run(tmp_path / "runs", *SMALL, f"training.phases=[{LEARN}, {LOOK}]")
    text = outcome.run.metrics_file.read_text()
    assert "eval/return_mean" in text and "normalized" not in text


def test_a_dataset_that_is_gone_does_not_keep_a_policy_from_being_measured(tmp_path, swing):
    outcome = tiny_run(tmp_path / "runs", *SMALL, f"training.phases=[{LEARN}]")
    for file in swing.path.iterdir():
        file.unlink()
    assert "normalized_return" not in evaluate(outcome.run.path, episodes=1).summary()


def test_evaluation_changes_nothing_of_what_is_learned(tmp_path, swing):
    """Weights, optimizers, statistics and every random stream: equal with many and without any."""

    def learned(name, phases, *more):
        outcome = tiny_run(tmp_path / name, *SMALL, f"training.phases=[{phases}]", *more)
        state = CheckpointStore(outcome.run.checkpoints).load("last", rows=False)[0]
        kept = {"workflow": state["workflow"], "streams": state["parts"]["streams"]}
        return fingerprint({**kept, "buffer": state["parts"]["buffer.data"]})

    often = ", ".join([LEARN, LOOK] * 4)
    plain = learned("never", ", ".join([LEARN] * 4))
    assert learned("often", often, "evaluation.episodes=3") == plain
    other = learned("seed", ", ".join([LEARN] * 4), "experiment.seed=9")
    assert other != plain  # what is compared does depend on what was learned
