import csv
import io
import json
import re
import shutil
import subprocess

import pytest

from made_runs import made_run
from rl_lab.analysis.compare import compare
from rl_lab.analysis.document import (
    Code,
    Grid,
    Heading,
    Items,
    Media,
    Paragraph,
    Strong,
    html_table,
    markdown_table,
    to_html,
    to_markdown,
)
from rl_lab.analysis.export import escaped, export, result_grid, with_interval
from rl_lab.cli.main import main
from rl_lab.display.metric_style import MetricStyle, load_display
from rl_lab.records.formatting import visible

DISPLAY = load_display()
ENGINES = ("tectonic", "pdflatex", "xelatex", "lualatex")


@pytest.fixture
def found(tmp_path):
    """Two methods on two tasks; the name of one task is hard to print."""
    finals = {
        ("CartPole-v1", "ppo"): [1000.0, 1020.0],
        ("CartPole-v1", "q_learning"): [10.0, 10.0],
        ("50%_odd&{task}", "ppo"): [-3.0, -1.0],
        ("50%_odd&{task}", "q_learning"): [-1.0, -1.0],
    }
    runs = [
        made_run(tmp_path, [final], seed=seed, task=task, algorithm=name)
        for (task, name), values in finals.items()
        for seed, final in enumerate(values)
    ]
    return compare(runs, display=DISPLAY)


def test_numbers_with_their_intervals():
    style = MetricStyle(precision=1)
    assert with_interval(10.0, (8.0, 13.0), style) == "10.0 [8.0, 13.0]"
    assert with_interval(10.0, None, style) == "10.0"
    assert with_interval(0.5, (0.25, 1.0)) == "0.50 [0.25, 1.00]"


def test_a_clear_winner_of_a_task_stands_out(found):
    grid = result_grid(found.main, DISPLAY)
    assert list(grid.columns) == ["task", "ppo", "q_learning"]
    assert [list(row) for row in grid.rows] == [
        ["CartPole-v1", Strong("1,010.0 [1,000.0, 1,020.0]"), "10.0 [10.0, 10.0]"],
        ["50%_odd&{task}", "-2.0 [-3.0, -1.0]", "-1.0 [-1.0, -1.0]"],  # they overlap
    ]


def test_unfinished_runs_are_counted_as_such_and_warnings_are_in_the_latex(tmp_path):
    runs = [
        made_run(tmp_path, [1.0], seed=seed, algorithm=each) for each in "ab" for seed in (1, 2)
    ]
    runs.append(made_run(tmp_path, [1.0], seed=3, algorithm="a", summary={"status": "running"}))
    found = compare(runs, display=DISPLAY)
    text = export(found, "latex", DISPLAY)
    assert "2 to 3 runs each. 1 is not finished." in text
    comments = [line for line in text.splitlines() if line.startswith("% ")]
    assert comments[0] == "% needs \\usepackage{booktabs}"
    assert any(f"run {runs[-1].id} is running" in line for line in comments)
    assert len(comments) == 1 + len(found.warnings)
    rows = list(csv.DictReader(io.StringIO(export(found, "csv", DISPLAY))))
    assert [(row["runs"], row["finished"]) for row in rows] == [("3", "2"), ("2", "2")]


def test_the_longer_list_goes_downwards(tmp_path):
    runs = [made_run(tmp_path, [place], algorithm=name) for place, name in enumerate("abc")]
    grid = result_grid(compare(runs, display=DISPLAY).main, DISPLAY)
    assert list(grid.columns) == ["method", "CartPole-v1"]
    assert [list(row) for row in grid.rows] == [["a", "0.0"], ["b", "1.0"], ["c", "2.0"]]


def test_one_method_alone_is_not_the_best(tmp_path):
    grid = result_grid(compare([made_run(tmp_path, [1])], display=DISPLAY).main, DISPLAY)
    assert [list(row) for row in grid.rows] == [["CartPole-v1", "1.0"]]


def test_a_combination_that_was_not_run_is_a_dash(tmp_path):
    runs = [made_run(tmp_path, [1.0], algorithm="a")]
    runs.append(made_run(tmp_path, [1.0], algorithm="b", task="Acrobot-v1"))
    grid = result_grid(compare(runs, display=DISPLAY).main, DISPLAY)
    assert [row[1] for row in grid.rows] == ["1.0", "-"]


def test_tables_survive_their_own_signs():
    grid = Grid(["a|b"], [["<x> & y"], [Strong("1|2")]])
    assert markdown_table(grid) == "| a\\|b |\n| --- |\n| &lt;x&gt; &amp; y |\n| **1\\|2** |"
    assert "<td>&lt;x&gt; &amp; y</td>" in html_table(grid)
    assert "<td><strong>1|2</strong></td>" in html_table(grid)


def test_no_block_can_smuggle_markup_into_a_page():
    evil = "<b>"
    blocks = [Heading(evil), Paragraph(evil), Items([evil]), Grid([evil], [[evil]]), Code(evil)]
    blocks += [Media(evil, "x.png", b""), Media(evil, "x.mp4", b""), Media(evil, "x.mp4", None)]
    page = to_html(evil, blocks)
    assert evil not in page and page.count("&lt;b&gt;") == 11


def test_markdown_has_no_raw_html_and_code_cannot_end_early():
    evil = "<script>alert(1)</script>"
    blocks = [Heading(evil), Paragraph(evil), Items([evil]), Grid([evil], [[evil]])]
    text = to_markdown(evil, [*blocks, Media(evil, "x.png", b""), Code("a\n```\n<b>")])
    assert "<script>" not in text.split("````")[0] and text.count("&lt;script&gt;") == 7
    assert text.endswith("````\na\n```\n<b>\n````\n")


def test_nothing_steers_a_terminal_or_turns_a_line_around():
    evil = "a\x1b[31mb\u202ec\x9bd\u2028e\r"
    shown = "a\\u001b[31mb\\u202ec\\u009bd\\u2028e\\r"
    assert visible(evil) == shown and visible("é – 名\n\t") == "é – 名\n\t"
    assert json.loads(visible(json.dumps({"name": evil}, ensure_ascii=False))) == {"name": evil}
    for page in (to_markdown(evil, [Paragraph(evil)]), to_html(evil, [Paragraph(evil)])):
        assert shown in page and "\x1b" not in page and "\u202e" not in page


def test_no_cell_of_a_csv_is_a_formula(tmp_path):
    runs = [made_run(tmp_path, [1.0], algorithm="=HYPERLINK(1)", task="@x")]
    text = export(compare(runs, display=DISPLAY), "csv", DISPLAY)
    row = next(csv.DictReader(io.StringIO(text)))
    assert row["method"] == "'=HYPERLINK(1)" and row["task"] == "'@x" and row["final"] == "1.0"


def test_latex_escapes_what_it_must():
    assert escaped("50%_odd&{task}") == "50\\%\\_odd\\&\\{task\\}"
    assert (
        escaped("a\\b~c^d#$") == "a\\textbackslash{}b\\textasciitilde{}c\\textasciicircum{}d\\#\\$"
    )
    assert escaped("1 ± 2") == "1 $\\pm$ 2"


def test_a_row_of_latex_is_no_argument_of_the_line_before():
    assert escaped("[64, 64]") == "{[}64, 64]" and escaped("*") == "{*}"


def test_a_latex_table_is_well_formed(found):
    text = export(found, "latex", DISPLAY)
    body = text[text.index("\\toprule") : text.rindex("\\end{tabular}")]
    rows = [line for line in body.splitlines() if not line.endswith("rule")]
    assert "\\label{tab:eval-return-mean}" in text
    assert rows[0] == "\\textbf{task} & \\textbf{ppo} & \\textbf{q\\_learning} \\\\"
    assert (
        rows[1] == "CartPole-v1 & \\textbf{1,010.0 {[}1,000.0, 1,020.0]} & 10.0 {[}10.0, 10.0] \\\\"
    )
    assert "\\begin{tabular}{lrr}" in text and "2 runs each." in text
    assert all(len(re.findall(r"(?<!\\)&", row)) == 2 for row in rows)
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}") and len(re.findall(r"(?<!\\)\$", bare)) % 2 == 0


@pytest.mark.skipif(not any(map(shutil.which, ENGINES)), reason="no TeX engine here")
def test_latex_tables_compile(found, tmp_path):
    names = ["a", "[64, 64]", "*best*", "x\\y~z^#$", "<a|b>", '`it\'s` "so"', "é ü – “q”", "{_%&}"]
    made = [made_run(tmp_path, [1.0], task=task, algorithm=each) for each in names for task in "ab"]
    awkward = compare(made, display=DISPLAY)
    tables = [export(each, "latex", DISPLAY) for each in (found, awkward)]
    file = tmp_path / "paper.tex"
    head = ["\\documentclass{article}", "\\usepackage{booktabs}"]
    lines = [*head, "\\begin{document}", *tables, "\\end{document}", ""]
    file.write_text("\n".join(lines))
    engine = next(name for name in ENGINES if shutil.which(name))
    words = [engine] if engine == "tectonic" else [engine, "-halt-on-error"]
    done = subprocess.run(
        [*words, file.name],
        cwd=tmp_path,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    assert file.with_suffix(".pdf").exists()


def test_csv_has_plain_numbers(found):
    rows = list(csv.DictReader(io.StringIO(export(found, "csv", DISPLAY))))
    assert [row["method"] for row in rows] == ["ppo", "q_learning", "ppo", "q_learning"]
    assert (rows[0]["final"], rows[0]["final_low"], rows[0]["final_high"]) == (
        *("1010.0", "1000.0"),
        "1020.0",
    )
    assert rows[0]["seeds"] == "0 1" and rows[0]["runs"] == "2" and rows[0]["test"] == ""


def test_json_markdown_and_html(found):
    tree = json.loads(export(found, "json", DISPLAY))
    assert tree["metrics"][0]["groups"][0]["final"] == 1010.0
    markdown = export(found, "md", DISPLAY)
    assert "| CartPole-v1 | **1,010.0 [1,000.0, 1,020.0]** | 10.0 [10.0, 10.0] |" in markdown
    assert "only 2 seeds" in markdown
    page = export(found, "html", DISPLAY)
    assert (
        page.startswith("<!doctype html>") and "<strong>1,010.0 [1,000.0, 1,020.0]</strong>" in page
    )


def test_the_command_prints_or_writes(lab, tmp_path, capsys):
    words = ["export", "CartPole-*", "--runs-dir", str(lab), "--format", "latex"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert (
        printed.startswith("% needs") and "\n\\begin{table}" in printed and "\\textbf{" in printed
    )
    assert main([*words, "--output", str(tmp_path / "table.tex")]) == 0
    assert (tmp_path / "table.tex").read_text() == printed
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--format", "latx"], "--format latx: no such format (did you mean 'latex'?)"),
        (["--format", "md", "--output", "."], "is a folder: name a file in it"),
    ],
)
def test_mistakes_are_one_line(lab, capsys, words, problem):
    assert main(["export", "@last", "--runs-dir", str(lab), *words]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1 and problem in errors
