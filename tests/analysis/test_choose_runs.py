"""Runs chosen by filters, and forks: whose children they are, and where their curves begin."""

import json
from dataclasses import replace

import pytest

from made_runs import made_run
from rl_lab.analysis.compare import compare
from rl_lab.analysis.groups import select_runs
from rl_lab.analysis.plots import comparison_chart, legend
from rl_lab.analysis.query import parse_filter
from rl_lab.cli.main import main
from rl_lab.core.errors import UserError
from rl_lab.display.metric_style import load_display
from rl_lab.records.index import Index
from rl_lab.records.run_directory import list_runs

DISPLAY = load_display()


def chosen(root, *words, references=()):
    return {run.id for run in select_runs(references, root, [parse_filter(each) for each in words])}


# ------------------------------------------------------------------------------- filters


@pytest.fixture
def three(tmp_path):
    """PPO that ended at 90 and at 10, and DQN at 50."""
    return [
        made_run(tmp_path, [90.0], seed=1, summary={"last_return": 90.0}),
        made_run(tmp_path, [10.0], seed=2, summary={"last_return": 10.0}),
        made_run(tmp_path, [50.0], seed=1, algorithm="dqn", summary={"last_return": 50.0}),
    ]


def test_every_filter_must_hold(tmp_path, three):
    good, bad, dqn = (run.id for run in three)
    assert chosen(tmp_path, "algorithm=ppo") == {good, bad}
    assert chosen(tmp_path, "algorithm=ppo", "reward>40") == {good}
    assert chosen(tmp_path, "eval/return_mean<60") == {bad, dqn}
    assert chosen(tmp_path, "seed=1", references=["CartPole-v1-dqn*", bad]) == {dqn}


def test_a_run_of_another_folder_can_be_filtered_too(tmp_path, three):
    elsewhere = made_run(tmp_path / "elsewhere", [70.0], summary={"last_return": 70.0})
    named = [str(elsewhere.directory.path), three[1].id]
    assert chosen(tmp_path, "reward>60", references=named) == {elsewhere.id}


def test_mistakes_in_filters_are_told(tmp_path, three):
    with pytest.raises(UserError, match="none of the 3 runs fulfils algorithm=sac and reward>1"):
        chosen(tmp_path, "algorithm=sac", "reward>1")
    with pytest.raises(UserError, match=r"no run has 'algoritm' \(did you mean 'algorithm'"):
        chosen(tmp_path, "algoritm=ppo")


def test_the_commands_take_filters(lab, capsys):
    where = ["--runs-dir", str(lab)]
    ppo = {row["id"] for row in Index(lab).rows(algorithm="ppo")}
    assert main(["compare", "--filter", "algorithm=ppo", "--json", *where]) == 0
    (group,) = json.loads(capsys.readouterr().out)["metrics"][0]["groups"]
    assert set(group["runs"]) == ppo and len(ppo) == 3
    words = ["--filter", "algorithm=ppo", "--filter", "seed<3", "--format", "csv"]
    assert main(["export", *words, *where]) == 0
    assert capsys.readouterr().out.splitlines()[1].split(",")[5] in ("1 2", "2 1")
    assert main(["compare", *where]) == 2
    assert "choose them with --filter" in capsys.readouterr().err
    assert main(["compare", "--filter", "algorithm", *where]) == 2


def test_two_filters_have_two_reports(lab, capsys):
    def written(*words):
        assert main(["report", *words, "--json", "--runs-dir", str(lab)]) == 0
        return json.loads(capsys.readouterr().out)[0]

    below, above = written("--filter", "seed<3"), written("--filter", "seed>1")
    assert below != above and below.startswith(f"{lab}/reports/seed-3-")
    assert written("--filter", "seed<3") == below
    (only,) = Index(lab).rows(algorithm="random", seed=2)
    one = written("--filter", "algorithm=random", "--filter", "seed=2")
    assert one == str(lab / only["path"] / "report.md")  # one run has it in its own folder


# --------------------------------------------------------------------------------- forks


def forked(root, parent, values, *, at, **more):
    """A child: rows at 100, 200, … of which those up to `at` are copies."""
    summary = {"parent": {"id": parent.id, "step": at}}
    return made_run(root, values, seed=parent.seed, summary=summary, **more)


def test_the_curve_of_a_fork_begins_where_it_began(tmp_path):
    parent = made_run(tmp_path, [99.0, 20.0, 30.0, 40.0])
    child = forked(tmp_path, parent, [99.0, 20.0, 60.0, 80.0], at=200)
    found = compare([parent, child], display=DISPLAY, at=[100, 300])
    old, new = found.main.cells
    assert (old.method, new.method) == ("ppo", "ppo forked at 200")
    assert old.curves[0].steps.tolist() == [100, 200, 300, 400] and old.best == 99.0
    # 99 was reached by its parent, at step 100.
    assert new.curves[0].steps.tolist() == [200, 300, 400]
    assert new.curves[0].values.tolist() == [20.0, 60.0, 80.0] and new.best == 80.0
    assert [each.value for each in new.at] == [None, 60.0]
    assert legend(old) == "ppo (1 run)"
    assert legend(new) == f"ppo forked at 200 (1 run from {parent.id})"
    assert [line.x[0] for line in comparison_chart(found).panels[0].lines] == [100, 200]
    assert not any("counted more than once" in line for line in found.warnings)


def test_a_legend_names_some_of_many_parents(tmp_path):
    parents = [made_run(tmp_path, [1.0, 2.0], seed=seed) for seed in (1, 2, 3)]
    children = [forked(tmp_path, parent, [1.0, 2.0, 3.0], at=200) for parent in parents]
    (cell,) = compare(children, display=DISPLAY).main.cells
    first, second, _ = (parent.id for parent in parents)
    assert cell.seeds == [1, 2, 3]
    assert legend(cell) == f"ppo forked at 200 (3 runs from {first}, {second}, …)"
    assert legend(replace(cell, parents=[first])) == f"ppo forked at 200 (3 runs from {first})"


def test_runs_with_a_common_past_are_doubted(tmp_path):
    parent = made_run(tmp_path, [1.0, 2.0, 3.0], seed=1)
    children = [forked(tmp_path, parent, [1.0, 2.0, 3.0], at=100) for _ in range(2)]
    one, other = (child.id for child in children)
    shared = "what was learned by then is counted more than once"
    line = f"forked at 100: {one} is a fork of {parent.id}, {other} is a fork of {parent.id}; "
    assert any(line + shared in each for each in compare(children, display=DISPLAY).warnings)
    mixed = compare([parent, children[0]], keys=["algorithm"], display=DISPLAY)
    assert [cell.method for cell in mixed.main.cells] == ["ppo"]
    assert any(f"{one} is a fork of {parent.id}; {shared}" in each for each in mixed.warnings)


def test_a_fork_that_has_nothing_of_its_own_yet_is_left_out(tmp_path):
    parent = made_run(tmp_path, [1.0, 2.0])
    child = forked(tmp_path, parent, [1.0, 2.0], at=250)
    found = compare([parent, child], display=DISPLAY)
    assert [cell.runs for cell in found.main.cells] == [[parent.id]]
    assert any(f"has no eval/return_mean: {child.id}" in line for line in found.warnings)


def test_a_parent_that_is_none_is_damage(tmp_path):
    with pytest.raises(UserError, match="'parent' must be the id and the step of a run"):
        made_run(tmp_path, [1.0], summary={"parent": "abcdef"})


def test_list_shows_parents_where_there_are_some(tmp_path, capsys):
    parent = made_run(tmp_path, [1.0, 2.0])
    where = ["--runs-dir", str(tmp_path)]
    assert main(["list", *where]) == 0
    assert "parent" not in capsys.readouterr().out
    child = forked(tmp_path, parent, [1.0, 2.0, 3.0], at=200)
    assert main(["list", *where]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[-1] == "parent" and len(list_runs(tmp_path)) == len(lines) == 2
    (line,) = [line for line in lines if line.startswith(child.id)]
    assert line.split()[-1] == f"{parent.id}:200"
    assert main(["list", "--json", "--filter", f"parent={parent.id}:*", *where]) == 0
    assert [row["id"] for row in json.loads(capsys.readouterr().out)] == [child.id]
