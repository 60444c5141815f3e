"""`--debug`, a debugger that is attached, and what `auto` chose."""

import json
import sys

import pytest
import torch

from rl_lab import Callback, register
from rl_lab.analysis.view import with_report
from rl_lab.cli.main import main
from rl_lab.core.errors import NonFiniteError
from rl_lab.display.sinks import Sink
from rl_lab.records.alerts import read_alerts
from rl_lab.records.metrics import read_metrics
from rl_lab.records.run_directory import find_run
from rl_lab.run import debug, session
from rl_lab.run.activations import activation_statistics, effective_rank
from rl_lab.run.session import load_config, no_view, resume
from tiny_runs import SMALL, SMALL_PPO, run_hash, tiny_config, tiny_run

PPO = "CartPole-v1:ppo_defaults"


# -- auto -----------------------------------------------------------------------------------------


def test_what_auto_chose_is_said_once_and_recorded(tmp_path, capsys):
    words = [PPO, *SMALL, *SMALL_PPO, "training.total_timesteps=64"]
    assert main(["train", *words, "--runs-dir", str(tmp_path)]) == 0
    run = find_run("@last", tmp_path)[0]
    config = load_config(run)
    chosen = {
        "experiment.device": config.experiment.device,
        "environment.vectorization": config.environment.vectorization,
        "compute.compile": config.compute.compile,
        "compute.threads": config.compute.threads,
    }
    assert chosen["environment.vectorization"] == "torch"
    assert "auto" not in chosen.values()
    shown = capsys.readouterr().out
    for name, value in chosen.items():
        assert shown.count(f"{name}={value}") == 1
        assert run.log_file.read_text().count(f"{name}={value}") == 1
    resume("@last", root=tmp_path)
    assert run.log_file.read_text().count("auto: ") == 1  # nothing was left to choose


def test_what_was_asked_for_is_not_called_a_choice(tmp_path):
    words = ["experiment.device=cpu", "compute.threads=1", "compute.compile=off"]
    run = tiny_run(tmp_path, PPO, *words, "training.total_timesteps=64").run
    assert "auto: environment.vectorization=torch\n" in run.log_file.read_text()


# -- a debugger -----------------------------------------------------------------------------------


@pytest.fixture
def traced():
    """As pdb, or an editor, holds a process."""
    before = sys.gettrace()

    def trace(frame, event, argument):
        return None

    trace.__module__ = "pydevd"
    sys.settrace(trace)
    yield
    sys.settrace(before)


@pytest.mark.parametrize(
    "words",
    [
        ("CartPole-v1:ppo_defaults",),
        ("CartPole-v1:ppo_defaults", "algorithm.batch_size=32"),
        ("CartPole-v1:ppo_gru_defaults", "algorithm.minibatches=4"),
        ("CartPole-v1:ppo_defaults", "algorithm.minibatches=64"),
        ("CartPole-v1:random", "environment.vectorization=process", "algorithm.collect_steps=16"),
    ],
)
def test_under_a_debugger_there_is_one_environment_in_this_process(tmp_path, traced, words):
    run = tiny_run(tmp_path, *words, "training.total_timesteps=32").run
    config = load_config(run)  # it is still valid: whatever became smaller fits together
    assert config.environment.num_envs == 1
    assert config.environment.vectorization == "sync"
    assert run.read_summary()["env_steps"] == 32
    assert run.log_file.read_text().count("pydevd is attached: one environment") == 1


def test_nobody_is_attached():
    before = sys.gettrace()
    sys.settrace(None)
    try:
        assert debug.debugger() is None
    finally:
        sys.settrace(before)


def test_measuring_coverage_is_not_debugging():
    def trace(frame, event, argument):
        return None

    trace.__module__ = "coverage.pytracer"
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert debug.debugger() is None
    finally:
        sys.settrace(before)


def test_minibatches_stay_where_they_fit():
    config = tiny_config(PPO, "algorithm.minibatches=2")
    assert debug.for_debugger(config).algorithm == config.algorithm


# -- --debug --------------------------------------------------------------------------------------


def test_debug_shows_weights_and_a_profile(tmp_path, capsys):
    words = ["train", PPO, *SMALL, *SMALL_PPO, "training.total_timesteps=256", "--debug"]
    assert main([*words, "--runs-dir", str(tmp_path)]) == 0
    run = find_run("@last", tmp_path)[0]
    rows = read_metrics(run.log_file.with_name("debug.jsonl"))
    assert len(rows) == run.read_summary()["updates"] == 4
    layer = "debug/learner.critic.weight"
    model = run_weights(run)
    assert rows[-1][f"{layer}/mean"] == pytest.approx(float(model.mean()))
    assert rows[-1][f"{layer}/max"] == pytest.approx(float(model.abs().max()))
    assert all(row[f"{layer}/grad_norm"] > 0 and row[f"{layer}/std"] > 0 for row in rows)
    profile = run.log_file.with_name("profile.txt").read_text()
    assert "tottime" in profile and "run_backward" in profile
    assert profile.strip() in capsys.readouterr().out


def test_debug_looks_into_the_layers_and_traces_updates(tmp_path):
    config = tiny_config(PPO, "logging.report=true", "network.encoder.activation=relu")
    run = session.train(config, root=tmp_path, view=with_report(no_view), debug=True).run
    rows = read_metrics(run.log_file.with_name("debug.jsonl"))
    layer = next(name for name in rows[-1] if name.endswith("/rank")).removesuffix("/rank")
    assert all(0 <= row[f"{layer}/dead"] <= 1 for row in rows)
    assert all(1 <= row[f"{layer}/rank"] <= 8 for row in rows)  # 8 units
    trace = json.loads(run.log_file.with_name("trace.json").read_text())
    names = [each.get("name", "") for each in trace["traceEvents"]]
    assert sum("aten::addmm" in name or "aten::mm" in name for name in names) > 10
    page = (run.path / "report.md").read_text()
    assert "## Debug" in page and layer.removeprefix("debug/") in page and "logs/trace.json" in page


def test_dead_layers_give_an_alert(tmp_path, names_restored):
    @register("callback", "kill")
    class Kill(Callback):
        """Every unit of the first layers is pushed far below 0."""

        def __init__(self, config):
            pass

        def after_update(self, run, hook):
            for name, weight in run.algorithm.learner.module.named_parameters():
                if "torsos" in name and name.endswith("bias"):
                    weight.data.fill_(-1e3)

    words = ["network.encoder.activation=relu", "training.callbacks={x: {type: kill}}"]
    run = session.train(tiny_config(PPO, *words), root=tmp_path, debug=True).run
    (first, *_) = read_alerts(run.timing_alerts_file)
    assert first.monitor == "dead_units" and first.value > 0.5


def test_statistics_of_activations_by_hand():
    # two rows, three units: the first is never moved, the second by one row, the third by both
    outputs = torch.tensor([[0.0, 0.0, 1.0], [0.0, 2.0, 1.0]])
    found = activation_statistics("x", outputs, bounded=False)
    assert found["debug/x/dead"] == pytest.approx(1 / 3)
    assert found["debug/x/mean"] == pytest.approx(4 / 6)
    stuck = torch.tensor([[0.999, 0.999], [0.999, -0.999]])  # of tanh: the first is at one bound
    assert activation_statistics("x", stuck, bounded=True)["debug/x/dead"] == 0.5
    # equal singular values: as many directions as there are; one direction: 1; none: 0
    assert effective_rank(torch.eye(4)) == pytest.approx(4)
    assert effective_rank(torch.ones(5, 3)) == pytest.approx(1)
    assert effective_rank(torch.zeros(5, 3)) == 0


def run_weights(run):
    from tiny_runs import final_state

    return final_state(run)["workflow"]["learner"]["module"]["critic.weight"]


def test_debug_changes_nothing_of_the_run(tmp_path):
    config = tiny_config("CartPole-v1:ppo_gru_defaults", "algorithm.minibatches=2")
    plain = session.train(config, root=tmp_path / "a")
    watched = session.train(config, root=tmp_path / "b", debug=True)
    assert run_hash(plain.run) == run_hash(watched.run)
    assert not plain.run.log_file.with_name("debug.jsonl").exists()
    assert not plain.run.log_file.with_name("profile.txt").exists()


def test_debug_names_the_parameter_whose_gradient_is_bad(tiny):
    orchestrator = tiny()
    orchestrator.add_callback("weights", debug.WeightLog())
    learner = orchestrator.algorithm.learner
    real, where = learner._apply, learner.names.index("critic.weight")

    def poisoned(state, found, *rest):
        found.gradient.split(learner.sizes)[where][0] = float("nan")
        return real(state, found, *rest)

    learner._apply = poisoned
    orchestrator.execute("collect")
    with pytest.raises(NonFiniteError, match=r"gradient of critic\.weight\)") as caught:
        orchestrator.execute("update")
    assert caught.value.details["parameters"] == ["critic.weight"]


def test_debug_finds_a_bad_gradient_that_an_algorithm_applied(tiny):
    orchestrator = tiny()
    weight = orchestrator.algorithm.model.critic.weight

    def update(batch, *, phase):
        weight.grad = torch.full_like(weight, float("inf"))
        return {"norm": torch.tensor(1.0)}

    orchestrator.hooks["update"] = update
    orchestrator.add_callback("weights", debug.WeightLog())
    orchestrator.execute("collect")
    with pytest.raises(NonFiniteError, match=r"gradient of learner\.critic\.weight"):
        orchestrator.execute("update")


def test_a_failed_run_leaves_its_profile_too(tmp_path):
    class Breaks(Sink):
        def write(self, step, row):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.train(tiny_config(PPO), root=tmp_path, view=lambda *_: [Breaks()], debug=True)
    run = find_run("@last", tmp_path)[0]
    assert "tottime" in run.log_file.with_name("profile.txt").read_text()
