import json
import tracemalloc

import numpy as np
import pytest

from made_runs import made_run
from rl_lab.analysis import curves
from rl_lab.analysis.curves import Curve, align, metric_of, middle_and_band, read_curves
from rl_lab.analysis.groups import differences, group_runs, group_warnings, load_run, select_runs
from rl_lab.core.errors import UserError
from rl_lab.records.config_file import experiment_of, read_config
from rl_lab.records.run_directory import list_runs


def curve(steps, values):
    return Curve(np.array(steps, dtype=np.int64), np.array(values, dtype=float))


# ------------------------------------------------------------------------------------- curves


def test_a_metrics_file_as_curves(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(
        '{"step": 10, "a": 1.0, "b": 5}\n'
        '{"step": 20, "a": "nan"}\n'
        '{"step": 30, "a": 3.0}\n'
        '{"step": 30, "a": 4.0}\n'
        '{"step": 40, "a": 9'  # a writer at work
    )
    curves = read_curves(file)
    assert list(curves) == ["a", "b"]
    assert curves["a"].steps.tolist() == [10, 30] and curves["a"].values.tolist() == [1.0, 4.0]
    assert curves["b"].final == 5.0
    assert list(read_curves(file, ["b", "c"])) == ["b"]


def test_a_value_at_a_step_is_never_from_the_future():
    known = curve([10, 20], [1.0, 2.0])
    assert [known.at(step) for step in (9, 10, 19, 20, 99)] == [None, 1.0, 1.0, 2.0, 2.0]


def test_seeds_are_aligned_on_the_stretch_that_all_cover():
    steps, rows = align([curve([10, 20, 30], [1, 2, 3]), curve([15, 25, 60], [5, 6, 7])])
    assert steps.tolist() == [15, 20, 25, 30]
    assert rows.tolist() == [[1, 2, 2, 3], [5, 5, 6, 6]]


def test_long_curves_are_thinned_and_keep_their_ends():
    steps, rows = align([curve(range(1, 5001), range(5000))])
    assert len(steps) == 200 and steps[0] == 1 and steps[-1] == 5000
    assert (rows[0] == steps - 1).all()


def test_curves_without_a_common_stretch_give_none():
    steps, rows = align([curve([1, 2], [0, 0]), curve([5, 6], [0, 0])])
    assert steps.tolist() == [] and rows.shape == (2, 0)
    middle, band = middle_and_band(rows)
    assert len(middle) == len(band[0]) == 0


def test_the_middle_of_seeds_and_its_band():
    middle, band = middle_and_band(np.array([[0.0, 5.0], [2.0, 5.0]]))
    assert middle.tolist() == [1.0, 5.0]
    # as for one number: both seeds are drawn twice in a quarter of the samples each
    assert band[0].tolist() == [0.0, 5.0] and band[1].tolist() == [2.0, 5.0]
    assert middle_and_band(np.array([[1.0, 2.0]]))[1] is None


def test_an_alias_means_one_metric_for_all_runs():
    both = {"eval/return_mean": 0, "collect/return_mean": 0}
    assert metric_of("reward", [both, both]) == "eval/return_mean"
    assert metric_of("reward", [both, {"collect/return_mean": 0}]) == "eval/return_mean"
    assert metric_of("reward", [{"collect/return_mean": 0}]) == "collect/return_mean"
    assert metric_of("loss", [{"train/critic_loss": 0}, {}]) == "train/critic_loss"
    assert metric_of("train/x", [{"train/x": 0}]) == "train/x"
    with pytest.raises(UserError, match=r"no run has the metric 'rewrd' \(did you mean 'reward'"):
        metric_of("rewrd", [both])


# ------------------------------------------------------------------------------------- groups


def test_groups_by_key_and_their_names(tmp_path):
    made_run(tmp_path, [1], seed=1, gamma=0.9)
    made_run(tmp_path, [1], seed=2, gamma=0.99)
    made_run(tmp_path, [1], algorithm="dqn", task="Acrobot-v1")
    runs = select_runs([], tmp_path)
    groups = group_runs(runs, ["environment", "algorithm"])
    assert [(g.task, g.method, len(g.runs)) for g in groups] == [
        ("CartPole-v1", "ppo", 2),
        ("Acrobot-v1", "dqn", 1),
    ]
    by_gamma = group_runs(runs[:2], ["algorithm.gamma"])
    assert [group.method for group in by_gamma] == ["gamma=0.9", "gamma=0.99"]
    with pytest.raises(UserError, match="--group: no run has the key 'algoritm'"):
        group_runs(runs, ["algoritm"])


def test_environments_are_never_mixed(tmp_path):
    made_run(tmp_path, [1])
    made_run(tmp_path, [1], task="Acrobot-v1")
    assert len(group_runs(select_runs([], tmp_path), ["algorithm"])) == 2


def test_without_keys_a_group_differs_in_the_seed_only(tmp_path):
    for seed in (1, 2):
        made_run(tmp_path, [1], seed=seed, gamma=0.9)
        made_run(tmp_path, [1], seed=seed, gamma=0.99)
        made_run(tmp_path, [1], seed=seed, gamma=0.5, algorithm="dqn")
    groups = group_runs(select_runs([], tmp_path))
    assert {group.method: len(group.runs) for group in groups} == {
        "ppo gamma=0.9": 2,
        "ppo gamma=0.99": 2,
        "dqn": 2,
    }


def test_what_speaks_against_a_group(tmp_path):
    first = made_run(tmp_path, [1], seed=1, gamma=0.9)
    second = made_run(tmp_path, [1], seed=1, summary={"status": "failed", "env_steps": 40})
    assert differences([first, second]) == {"algorithm.gamma": {first.id: 0.9, second.id: 0.99}}
    (group,) = group_runs([first, second], ["algorithm"])
    assert group_warnings(group) == [
        "CartPole-v1 ppo: only 1 seed; 3 or more are needed to say anything",
        "CartPole-v1 ppo: seed 1 was run more than once; each run counts",
        "CartPole-v1 ppo: configs differ in more than the seed: algorithm.gamma is "
        f"0.9 ({first.id}), 0.99 ({second.id})",
        f"CartPole-v1 ppo: run {second.id} is failed, at step 40 of 100",
    ]


def test_three_seeds_of_one_config_raise_no_doubt(tmp_path):
    runs = [made_run(tmp_path, [1], seed=seed) for seed in (1, 2, 3)]
    assert group_warnings(group_runs(runs)[0]) == []


# ------------------------------------------------------------------- real runs, by reference


def test_runs_are_named_by_reference_pattern_and_experiment(lab):
    directories = list_runs(lab)
    last = directories[-1]
    assert [run.id for run in select_runs(["@last"], lab)] == [last.id]
    assert [run.id for run in select_runs([last.id, "@last"], lab)] == [last.id]  # once
    assert len(select_runs(["CartPole-v1-ppo-*"], lab)) == 3
    assert len(select_runs([], lab)) == 6
    experiment = experiment_of(read_config(last.config_file))
    assert {run.algorithm for run in select_runs([experiment], lab)} == {"random"}
    assert len(select_runs([experiment], lab)) == 3


def test_wrong_references_are_one_clear_line(lab, tmp_path):
    with pytest.raises(UserError, match=r"no run in .* matches 'Acrobot-\*'"):
        select_runs(["Acrobot-*"], lab)
    with pytest.raises(UserError, match="'@last:best' names a checkpoint"):
        select_runs(["@last:best"], lab)
    with pytest.raises(UserError, match="no run 'abcdefabcdef'"):
        select_runs(["abcdefabcdef"], lab)
    with pytest.raises(UserError, match="there are no runs in"):
        select_runs([], tmp_path)
    run = made_run(tmp_path, [1])
    run.directory.config_file.write_text("just text")
    with pytest.raises(UserError, match=r"config\.yaml: expected `key: value`"):
        load_run(run.directory)


def test_real_seeds_differ_in_the_seed_only(lab):
    groups = group_runs(select_runs([], lab))
    assert [(group.method, len(group.runs)) for group in groups] == [("ppo", 3), ("random", 3)]
    assert [line for group in groups for line in group_warnings(group)] == []


def test_a_long_curve_keeps_its_extremes_its_end_and_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "THINNED", 100)
    rng = np.random.default_rng(0)
    values = rng.normal(size=20_000).cumsum()
    values[12_345], values[777] = 9_999.0, -9_999.0
    file = tmp_path / "m"
    with file.open("w") as rows:
        for step, value in enumerate(values.tolist()):
            rows.write(json.dumps({"step": 10 * step, "a": 0.0, "b": value}) + "\n")
    tracemalloc.start()
    thin = read_curves(file, thin=True)["b"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    assert 50 < len(thin.steps) <= 250
    assert (thin.values.max(), thin.steps[thin.values.argmax()]) == (9_999.0, 123_450)
    assert (thin.values.min(), thin.steps[thin.values.argmin()]) == (-9_999.0, 7_770)
    assert (thin.steps[-1], thin.final) == (199_990, values[-1])
    assert (np.diff(thin.steps) > 0).all()
    # Every stretch of the file has about as many points: what is old is not thinner.
    first = (thin.steps < 100_000).sum() / len(thin.steps)
    assert 0.4 < first < 0.6
    whole = read_curves(file)["b"]
    assert np.array_equal(whole.values, values) and len(whole.steps) == 20_000


def test_of_one_step_the_last_row_counts_however_many_there_are(tmp_path):
    file = tmp_path / "m"
    steps = [0, 1, 1, 1, 1, 1, 2, 2, 3]
    rows = [json.dumps({"step": step, "a": place}) for place, step in enumerate(steps)]
    file.write_text("\n".join(rows) + "\n")
    for thin in (False, True):
        curve = read_curves(file, thin=thin)["a"]
        assert curve.steps.tolist() == [0, 1, 2, 3]
        assert curve.values.tolist() == [0, 5, 7, 8]
