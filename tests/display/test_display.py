"""One YAML decides how metrics are shown."""

import math

import pytest

from rl_lab.core.errors import ConfigError
from rl_lab.display.metric_style import BUILT_IN, Display, MetricStyle, load_display


def write(path, text):
    path.write_text(text)
    return path


def test_a_name_wins_over_patterns_and_the_upper_pattern_over_the_lower(tmp_path):
    file = write(
        tmp_path / "m.yaml",
        "train/*: {precision: 1}\ntrain/l*: {precision: 2}\ntrain/loss: {precision: 3}\n",
    )
    display = load_display([file])
    assert display["train/loss"].text(1.23456) == "1.235"
    assert display["train/lr"].text(1.23456) == "1.2"
    assert display["elsewhere"] == MetricStyle()


def test_the_order_is_that_of_the_file_and_the_unknown_come_last(tmp_path):
    file = write(tmp_path / "m.yaml", "z: {}\ntrain/*: {}\na: {}\n")
    names = ["other", "a", "train/y", "train/x", "z", "another"]
    ordered = load_display([file]).ordered(names)
    assert ordered == ["z", "train/x", "train/y", "a", "another", "other"]


def test_the_users_entries_come_first_and_keep_what_they_leave_out(tmp_path):
    lab = write(tmp_path / "lab.yaml", "d: {}\na: {precision: 1, unit: s}\nb: {precision: 2}\n")
    own = write(tmp_path / "own.yaml", "c: {}\nb: {highlight: true}\na: {precision: 3}\n")
    display = load_display([lab, own])
    assert display.ordered("abcd") == ["c", "b", "a", "d"]
    assert display["a"] == MetricStyle(precision=3, unit="s")
    assert display["b"] == MetricStyle(precision=2, highlight=True)


def test_the_file_in_the_folder_of_the_command_is_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = load_display()["eval/return_mean"]
    assert before.highlight and before.better == "higher"
    (tmp_path / "configs").mkdir()
    write(tmp_path / "configs" / "metrics.yaml", "eval/return_mean: {precision: 7}\n")
    assert load_display()["eval/return_mean"].precision == 7
    assert load_display()["eval/return_mean"].highlight


def test_an_empty_or_absent_file_changes_nothing(tmp_path):
    empty = write(tmp_path / "m.yaml", "# nothing\n")
    assert load_display([BUILT_IN, empty, tmp_path / "absent"]).styles == load_display().styles


def test_all_mistakes_are_told_at_once_with_the_nearest_word(tmp_path):
    file = write(
        tmp_path / "m.yaml",
        "a: {precison: 2, better: up}\nb: {precision: true, show: 1, unit: true}\n"
        "c: 4\nd: {precision: 99}\n",
    )
    with pytest.raises(ConfigError) as caught:
        load_display([file])
    assert caught.value.problems == [
        f"{file}: a.precison: unknown key (did you mean 'precision'?)",
        f"{file}: a.better: must be 'higher', 'lower' or null, got 'up'",
        f"{file}: b.precision: must be a whole number, got true",
        f"{file}: b.show: must be true or false, got 1",
        f"{file}: b.unit: must be text, got true",
        f"{file}: c: must be a block of keys, got 4",
        f"{file}: d.precision: must be in [0, 12], got 99",
    ]


@pytest.mark.parametrize("text", ["- a\n", "a: {\n", "\x00"])
def test_a_file_that_is_no_mapping_is_one_line(tmp_path, text):
    file = write(tmp_path / "m.yaml", text)
    with pytest.raises(ConfigError) as caught:
        load_display([file])
    (problem,) = caught.value.problems
    assert problem.startswith(f"{file}: ") and "\n" not in problem


def test_best_knows_the_direction_and_ignores_nan():
    values = [3.0, math.nan, 1.0, 2.0]
    assert MetricStyle(better="higher").best(values) == 3.0
    assert MetricStyle(better="lower").best(values) == 1.0
    assert MetricStyle().best(values) is None
    assert MetricStyle(better="lower").best([math.nan]) is None


def test_nothing_is_shown_that_the_file_hides():
    display = Display({"a*": MetricStyle(show=False), "*": MetricStyle()})
    assert not display["ab"].show and display["b"].show
