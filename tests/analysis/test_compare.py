import json
import sys

import pytest

from made_runs import made_run
from rl_lab.analysis.compare import compare
from rl_lab.analysis.plots import comparison_chart, described
from rl_lab.cli.main import main
from rl_lab.core.errors import UserError
from rl_lab.display.chart import to_svg
from rl_lab.display.metric_style import load_display
from rl_lab.records.config_file import experiment_of

DISPLAY = load_display()
FINALS = {"ppo": [10.0, 20.0, 30.0], "dqn": [0.0, 10.0, 40.0]}


def judged(runs, **options):
    return compare(runs, display=DISPLAY, **options)


@pytest.fixture
def runs(tmp_path):
    """Seeds 1, 2, 3 of two methods; each curve is 0 at step 100 and its final value at 200."""
    return [
        made_run(tmp_path, [0.0, final], seed=seed, algorithm=name)
        for name, finals in FINALS.items()
        for seed, final in enumerate(finals, start=1)
    ]


def test_a_cell_by_hand(tmp_path):
    tests = [{"test": {"last": {"return_mean": mean}}} for mean in (4.0, 6.0, 8.0)]
    curves = [[1.0, 9.0, 3.0], [2.0, 2.0, 6.0], [3.0, 1.0, 9.0]]
    runs = [
        made_run(tmp_path, values, seed=seed, summary=test)
        for seed, (values, test) in enumerate(zip(curves, tests, strict=True))
    ]
    (cell,) = judged(runs, at=[50, 250]).main.cells
    assert cell.seeds == [0, 1, 2] and cell.runs == [run.id for run in runs]
    assert cell.final == cell.iqm == 6.0  # (3 + 6 + 9) / 3
    assert cell.final_interval == (3.0, 9.0)  # all draws alike: 1/27 > 2.5 %
    assert cell.best == 8.0  # (9 + 6 + 9) / 3
    assert [(each.step, each.value) for each in cell.at] == [(50, None), (250, 4.0)]
    assert cell.test == 6.0 and cell.wall_time == 10.0


def test_by_default_curves_are_compared_at_shares_of_the_shortest_run(tmp_path):
    runs = [
        made_run(tmp_path, [1.0, 2.0, 3.0, 4.0], seed=1),
        made_run(tmp_path, [5.0, 6.0], seed=2, steps=[100, 200]),
    ]
    (cell,) = judged(runs).main.cells[:1]
    assert [(each.label, each.step) for each in cell.at] == [
        ("25%", 50),
        ("50%", 100),
        ("75%", 150),
    ]
    assert "CartPole-v1: runs end between step 200 and 400" in judged(runs).warnings[-1]


def test_methods_on_different_tasks_are_told(tmp_path):
    line = "not every method has every task: their scores over all tasks say little"
    runs = [made_run(tmp_path, [1.0], algorithm=name) for name in ("ppo", "dqn")]
    assert line not in judged(runs).warnings
    runs.append(made_run(tmp_path, [1.0], task="Acrobot-v1"))
    assert line in judged(runs).warnings


def test_a_key_that_a_run_does_not_have_is_not_in_its_name(tmp_path):
    runs = [made_run(tmp_path, [1.0], algorithm=name) for name in ("ppo", "dqn")]
    del runs[1].config["algorithm.gamma"]
    cells = judged(runs, keys=["algorithm.name", "algorithm.gamma"]).main.cells
    assert {cell.method for cell in cells} == {"ppo gamma=0.99", "dqn"}


def test_a_step_that_one_run_had_not_reached_has_no_mean(tmp_path):
    runs = [
        made_run(tmp_path, [1.0, 2.0], seed=1, steps=[100, 300]),
        made_run(tmp_path, [3.0, 4.0], seed=2, steps=[200, 300]),
    ]
    (cell,) = judged(runs, at=[150, 250]).main.cells
    assert [each.value for each in cell.at] == [None, 2.0]


def test_methods_and_pairs_by_hand(runs):
    found = judged(runs, scales={"CartPole-v1": (0.0, 40.0)})
    assert found.scales == {"CartPole-v1": (0.0, 40.0)}
    ppo, dqn = found.aggregates
    assert (ppo.iqm, ppo.optimality_gap, ppo.runs) == (0.5, 0.5, 3)  # 0.25, 0.5, 0.75
    assert dqn.mean == pytest.approx(5 / 12)  # 0, 0.25, 1
    (pair,) = found.pairs
    # 10 beats 0 and ties with 10: 1.5; 20 and 30 beat two each
    assert (pair.first, pair.second) == ("ppo", "dqn")
    assert pair.probability == pytest.approx(5.5 / 9)
    # differences 0.25, 0.25, -0.25: no sign could make their sum smaller than 0.25
    assert (pair.pairs, pair.p_value, pair.corrected) == (3, 1.0, 1.0)


def test_the_better_method_comes_first_and_lower_may_be_better(runs, tmp_path):
    assert judged(runs[::-1]).pairs[0].first == "ppo"
    losses = [
        made_run(tmp_path, [9.0, value], seed=seed, algorithm=name, metric="train/value_loss")
        for name, values in {"ppo": [3.0, 4.0], "dqn": [1.0, 2.0]}.items()
        for seed, value in enumerate(values)
    ]
    found = judged(losses, metrics=["loss"])
    assert found.pairs[0].first == "dqn" and found.pairs[0].probability == 1.0
    assert found.scales == {"CartPole-v1": (4.0, 1.0)}  # 0 is the worst, 1 the best
    assert found.main.cells[0].best == 3.5


def test_pairs_are_corrected_for_their_number(tmp_path):
    finals = {"a": range(10, 18), "b": range(8), "c": range(8)}
    runs = [
        made_run(tmp_path, [final], seed=seed, algorithm=name)
        for name, values in finals.items()
        for seed, final in enumerate(values)
    ]
    found = {(p.first, p.second): p for p in judged(runs).pairs}
    assert found["a", "b"].p_value == 2 / 256
    assert found["a", "b"].corrected == pytest.approx(3 * 2 / 256)
    assert found["b", "c"].p_value == found["b", "c"].corrected == 1.0
    assert found["b", "c"].probability == 0.5


def test_only_common_seeds_are_paired(tmp_path):
    runs = [made_run(tmp_path, [5.0], seed=seed, algorithm="a") for seed in (1, 2, 3)]
    runs += [made_run(tmp_path, [1.0], seed=seed, algorithm="b") for seed in (3, 4, 5)]
    (pair,) = judged(runs).pairs
    assert (pair.pairs, pair.p_value, pair.corrected) == (1, None, None)
    assert pair.probability == 1.0


def test_tasks_are_strata_and_scaled_on_their_own(tmp_path):
    runs = [
        made_run(tmp_path, [final], seed=seed, task=task, algorithm=name)
        for task, name, finals in [
            ("CartPole-v1", "ppo", [500.0, 500.0]),
            ("CartPole-v1", "dqn", [0.0, 250.0]),
            ("Acrobot-v1", "ppo", [-500.0, -500.0]),
            ("Acrobot-v1", "dqn", [-100.0, -100.0]),
        ]
        for seed, final in enumerate(finals)
    ]
    found = judged(runs)
    ppo, dqn = found.aggregates
    assert ppo.mean == 0.5 and ppo.mean_interval == (0.5, 0.5)  # 1, 1 and 0, 0
    assert dqn.mean == 0.625  # 0, 0.5 and 1, 1
    assert found.pairs[0].probability == 0.5  # better on one task, worse on the other
    assert found.pairs[0].pairs == 4
    scaled = judged(runs, scales={"Acrobot-v1": (-500.0, 0.0)})
    assert scaled.aggregates[1].mean == pytest.approx((0 + 0.5 + 0.8 + 0.8) / 4)
    with pytest.raises(UserError, match="--scale: no run of Pong"):
        judged(runs, scales={"Pong": (0.0, 1.0)})


def test_runs_without_the_metric_are_left_out_and_named(runs, tmp_path):
    other = made_run(tmp_path, [1.0], algorithm="random", metric="x")
    found = judged([*runs, other])
    assert [cell.method for cell in found.main.cells] == ["ppo", "dqn"]
    assert f"CartPole-v1 random: left out, as it has no eval/return_mean: {other.id}" in (
        found.warnings
    )


def test_a_run_without_an_evaluation_does_not_change_the_metric_of_the_others(
    runs, tmp_path, capsys
):
    """One run that never evaluated turned 423 into 184 for everybody."""
    test = {"test": {"last": {"return_mean": 4.5}}, "wall_time": 75.0}
    short = made_run(
        tmp_path, [1.0], algorithm="random", metric="collect/return_mean", summary=test
    )
    found = judged([*runs, short])
    assert found.main.metric == "eval/return_mean"
    assert [group.runs for group in found.main.missing] == [[short.id]]
    assert found.to_tree()["metrics"][0]["missing"][0]["runs"] == [short.id]
    folders = [str(run.directory.path) for run in [*runs, short]]
    assert main(["compare", *folders, "--runs-dir", str(tmp_path)]) == 0
    text, errors = capsys.readouterr()
    first, second = [line.split() for line in text.splitlines() if "random" in line]
    # runs, final, IQM, best, test, at 50 %, at 75 %: what it has of its own is shown
    assert first == ["CartPole-v1", "random", "1", "-", "-", "-", "4.5", "-", "-"]
    assert second == ["CartPole-v1", "random", "1:15"]  # wall time
    assert short.id in errors


def test_scores_of_one_task_are_shown_on_a_given_scale_only(runs, tmp_path, capsys):
    """From the worst to the best run of one task, they say nothing that its returns do not."""
    folders = [str(run.directory.path) for run in runs]
    scale = ["--scale", "CartPole-v1=0:500"]
    for words, shown in ([], False), (scale, True):
        assert main(["compare", *folders, *words, "--runs-dir", str(tmp_path)]) == 0
        assert ("scores from 0 to 1" in capsys.readouterr().out) == shown
        for form in ("md", "html"):
            words_of = ["export", *folders, *words, "--format", form, "--runs-dir", str(tmp_path)]
            assert main(words_of) == 0
            assert ("scores from 0 to 1" in capsys.readouterr().out) == shown
    assert judged(runs).aggregates == []
    equal = [made_run(tmp_path, [7.0], task=task) for task in ("A-v1", "B-v1")]
    assert judged(equal).aggregates == []


def test_what_is_chosen_by_itself_makes_no_other_method(tmp_path):
    runs = [made_run(tmp_path, [1.0], seed=seed) for seed in (1, 2, 3)]
    for run, every in zip(runs, (10, 20, 30), strict=True):
        run.config["evaluation.every_steps"] = every
    found = judged(runs)
    assert [cell.method for cell in found.main.cells] == ["ppo"] and found.warnings == []
    trees = [{"evaluation": {"every_steps": every, "episodes": 5}} for every in (10, 20)]
    assert experiment_of(trees[0]) == experiment_of(trees[1])


def test_keys_with_one_ending_are_written_whole(tmp_path):
    runs = [made_run(tmp_path, [1.0], seed=seed) for seed in (1, 2)]
    for run, to in zip(runs, (0.5, 1.0), strict=True):
        run.config["algorithm.beta.to"] = run.config["algorithm.epsilon.to"] = to
        run.config["algorithm.tau"] = to
    cells = judged(runs).main.cells
    names = [f"ppo algorithm.beta.to={to} algorithm.epsilon.to={to} tau={to}" for to in (0.5, 1.0)]
    assert [cell.method for cell in cells] == names


@pytest.mark.parametrize(
    ("seeds", "text"),
    [
        ([2, 2, 1], "seed 2 was run"),
        ([10, 2, 10, 2, 3], "seeds 2 and 10 were run"),
        ([*range(6)] * 2, "seeds 0, 1, 2, 3 and others were run"),
    ],
)
def test_seeds_that_were_run_twice_are_named(tmp_path, seeds, text):
    runs = [made_run(tmp_path, [1.0], seed=seed) for seed in seeds]
    assert f"CartPole-v1 ppo: {text} more than once; each run counts" in judged(runs).warnings


def test_equal_runs_are_compared_too(tmp_path):
    runs = [made_run(tmp_path, [7.0], seed=seed, algorithm=n) for n in "ab" for seed in (1, 2)]
    found = judged(runs)
    assert found.pairs[0].probability == 0.5 and found.pairs[0].p_value == 1.0
    assert to_svg(comparison_chart(found)).startswith("<svg ")


@pytest.mark.parametrize(
    ("pairs", "panels"),
    [
        ("aC bC", ["CartPole-v1"]),  # of one task a profile says nothing that its curves do not
        ("aC bA", ["CartPole-v1", "Acrobot-v1"]),  # no task in common
        ("aC aA bC", ["CartPole-v1", "Acrobot-v1", "performance profiles"]),
        ("aC aA", ["CartPole-v1", "Acrobot-v1", "performance profiles"]),
    ],
)
def test_profiles_are_over_tasks_that_methods_share(tmp_path, pairs, panels):
    tasks = {"C": "CartPole-v1", "A": "Acrobot-v1"}
    runs = [made_run(tmp_path, [1.0, 2.0], algorithm=a, task=tasks[t]) for a, t in pairs.split()]
    assert [panel.title for panel in comparison_chart(judged(runs)).panels] == panels


def test_a_title_says_what_is_compared(tmp_path):
    runs = [made_run(tmp_path, [1.0], algorithm=name) for name in ("dqn", "ppo")]
    title = "eval/return_mean of dqn, ppo on CartPole-v1 (2 runs)"
    assert described(judged(runs)) == comparison_chart(judged(runs)).title == title
    many = [made_run(tmp_path, [1.0], algorithm=f"method_{each}") for each in range(9)]
    assert described(judged(many)) == "eval/return_mean of 9 methods on CartPole-v1 (9 runs)"


def test_every_seed_is_drawn_to_its_own_end(tmp_path):
    lengths = [4, 2, 3]
    runs = [
        made_run(tmp_path, [1.0] * each, seed=each, steps=[*range(1, each + 1)]) for each in lengths
    ]
    for run in runs:  # one budget: it is one group of which some stopped early
        run.config["training.total_timesteps"] = 4
    chart = comparison_chart(judged(runs))
    middle, *tails = chart.panels[0].lines
    assert middle.x.tolist() == [1, 2] and middle.label == "ppo (3 runs)" and not middle.thin
    assert sorted(line.x.tolist() for line in tails) == [[2, 3], [2, 3, 4]]
    assert all(line.thin and not line.label for line in tails) and "Thin: " in chart.note


def test_seeds_without_a_common_stretch_are_drawn_alone(tmp_path):
    runs = [
        made_run(tmp_path, [1.0, 2.0], seed=start, steps=[start, start + 1]) for start in (1, 9)
    ]
    for run in runs:
        run.config["training.total_timesteps"] = 4
    lines = comparison_chart(judged(runs)).panels[0].lines
    assert [line.x.tolist() for line in lines] == [[1, 2], [9, 10]]
    assert [line.label for line in lines] == ["ppo (2 runs)", ""]


# ------------------------------------------------------------------- the command, on real runs


def test_the_command_prints_tables(lab, capsys):
    words = ["--group", "environment,algorithm", "--metrics", "reward,loss", "--at", "5e2"]
    assert main(["compare", *words, "--runs-dir", str(lab)]) == 0
    text, errors = capsys.readouterr()
    lines = text.splitlines()
    assert lines[0] == "eval/return_mean"
    columns = "task method runs final IQM best test at 500 wall time"
    assert " ".join(lines[1].split()) == columns
    assert lines[2].split()[:3] == ["CartPole-v1", "ppo", "3"]
    assert "train/loss" in lines and "pairs" in lines
    assert "With 3 common seeds no p-value can be below 0.25." in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100
    assert "left out, as it has no train/loss" in errors


def test_the_command_as_json(lab, capsys):
    assert main(["compare", "CartPole-*", "--runs-dir", str(lab), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (table,) = found["metrics"]
    assert table["metric"] == "eval/return_mean" and table["better"] == "higher"
    assert [group["seeds"] for group in table["groups"]] == [[1, 2, 3], [1, 2, 3]]
    assert found["pairs"][0]["pairs"] == 3 and found["warnings"] == []
    assert len(table["groups"][0]["finals"]) == 3


def test_one_run_is_warned_about(lab, capsys):
    assert main(["compare", "@last", "--runs-dir", str(lab)]) == 0
    assert "only 1 seed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    [pytest.param("plot.png", marks=pytest.mark.needs("matplotlib")), "plot.svg", "plot.html"],
)
def test_plots_are_one_file(lab, tmp_path, capsys, name):
    file = tmp_path / name
    words = ["--metrics", "reward,loss", "--runs-dir", str(lab), "--plot", str(file)]
    assert main(["compare", "CartPole-*", *words]) == 0
    data = file.read_bytes()
    if name.endswith("png"):
        assert data.startswith(b"\x89PNG") and len(data) > 10_000
    else:
        text = data.decode()
        assert text.count("<svg ") == 1 and text.count("<polyline ") == 3
        assert "://" not in text.replace("http://www.w3.org/2000/svg", "")  # the name of SVG
        assert name.endswith("svg") or "<strong>" in text
    assert f"plot: {file}" in capsys.readouterr().out
    assert [each.name for each in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "name runs"),
        (
            ["@last", "--plot", "x.pdf"],
            "--plot x.pdf: name a file that ends in .svg, .html or .png",
        ),
        (["@last", "--at", "soon"], "--at soon: must be a number of environment steps"),
        (["@last", "--scale", "CartPole-v1"], "--scale CartPole-v1: write TASK=LOW:HIGH"),
        (["@last", "--metrics", "rewrd"], "no run has the metric 'rewrd' (did you mean"),
        (["@last", "--metrics", "eval/retrun_mean"], "(did you mean 'eval/return_mean'?)"),
        (["@last", "--metrics", ","], "--metrics needs at least one name"),
        (["@last", "--group", "algoritm"], "--group: no run has the key 'algoritm' (did you"),
        (["Acrobot*"], "matches 'Acrobot*'"),
    ],
)
def test_mistakes_are_one_line(lab, capsys, words, problem):
    assert main(["compare", *words, "--runs-dir", str(lab)]) == 2
    text, errors = capsys.readouterr()
    assert text == "" and errors.count("\n") == 1 and problem in errors


def test_without_matplotlib_a_png_is_one_clear_line(lab, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["compare", "@last", "--runs-dir", str(lab), "--plot", str(tmp_path / "x.png")]
    assert main(words) == 2
    assert "pip install 'rl-lab[plots]'" in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()
    assert main([*words[:-1], str(tmp_path / "x.svg")]) == 0 and (tmp_path / "x.svg").exists()


def test_what_does_not_fit_a_hundred_columns_follows_below():
    from rl_lab.cli.compare import WIDTH, fitted

    rows = [{"task": "CartPole-v1", "method": "A", **{f"at {n}0000": "123.4" for n in range(20)}}]
    lines = fitted(rows, list(rows[0]), keys=2).splitlines()
    assert max(map(len, lines)) <= WIDTH and sum("123.4" in line for line in lines) > 1
    assert sum(line.count("123.4") for line in lines) == 20


def test_methods_with_long_names_have_letters(tmp_path, capsys):
    runs = [made_run(tmp_path, [1.0, 2.0], algorithm=name * 30) for name in "xy"]
    assert main(["compare", *(str(run.directory.path) for run in runs)]) == 0
    output = capsys.readouterr()
    lines = [*output.out.splitlines(), *output.err.splitlines()]
    assert max(map(len, lines)) <= 100 and lines[0] == "methods"
    assert lines[1].startswith("A  ") and "x" * 30 in lines[1]
    assert [line.split()[1] for line in lines if line.startswith("CartPole-v1 ")] == ["A", "B"]
