"""The benchmark of memories: its cells, its runs that are killed, its report."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from rl_lab.benchmarking.networks.cells import DEFAULT, MEMORIES, configured, plan
from rl_lab.benchmarking.networks.flawed import FlawedGRU, FlawedMamba, FlawedMamba2
from rl_lab.benchmarking.networks.matching import Match, match_width
from rl_lab.benchmarking.networks.page import to_csv, write_page
from rl_lab.benchmarking.networks.results import (
    Record,
    Results,
    joined,
    read_results,
    rows,
    with_records,
    write_results,
)
from rl_lab.benchmarking.networks.task_set import parse_set, read_set
from rl_lab.cli.main import main
from rl_lab.config.documents import PACKAGE_CONFIGS
from rl_lab.core.errors import ConfigError, UserError
from rl_lab.networks.actor_critic import ActorCritic
from rl_lab.networks.memory.recurrent import GRU
from rl_lab.records.run_directory import list_runs
from rl_lab.run.build import make_environment

ROOT = Path(__file__).parents[2]
SETS = sorted(file.stem for file in (PACKAGE_CONFIGS / "benchmark").glob("*.yaml"))
SMALL = {
    "title": "Small",
    "parameters": 3_000,
    "width": 8,
    "fixed": {
        "environment.num_envs": 4,
        "environment.max_episode_steps": 20,
        "algorithm.rollout_steps": 16,
        "algorithm.sequence_length": 16,
        "algorithm.epochs": 1,
        "network.shared_torso": True,
        "network.encoder.hidden_dims": [8],
        "compute.compile": "off",
        "evaluation.every_steps": 64,
        "evaluation.episodes": 2,
        "evaluation.test_episodes": 2,
        "checkpoint.every_steps": 64,
    },
    "tasks": {
        "Cart": {
            "base_config": "CartPole-v1:ppo_masked",
            "steps": 128,
            "threshold": 5,
            "published": {"none": 12},
            "published_steps": 1000,
        },
        "Absent": {"base_config": "Absent/Missing-v0:ppo", "steps": 128},
    },
}


def written(folder: Path, **changes) -> Path:
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump({**SMALL, **changes}))
    return file


# ------------------------------------------------------------------------------- equal sizes


def test_the_width_closest_to_a_number_of_parameters():
    # A network of width w has w² + 10 parameters: 9² + 10 = 91, 10² + 10 = 110.
    built = []

    def count(width: int) -> int:
        built.append(width)
        return width * width + 10

    assert match_width(count, 93, range(1, 101)) == Match(9, 91)  # 2 off, the other 17
    assert match_width(count, 110, range(1, 101)) == Match(10, 110)
    assert match_width(count, 108, range(1, 101)) == Match(10, 110)
    assert len(built) < 40  # not a hundred for each
    # Even widths: 8² + 10 = 74 and 110; 93 is 19 from one and 17 from the other.
    assert match_width(count, 93, range(2, 101, 2), tolerance=0.2) == Match(10, 110)
    with pytest.raises(UserError, match="only 74 or 110: choose another number with --parameters"):
        match_width(count, 93, range(2, 101, 2))
    with pytest.raises(UserError, match="only 11"):  # 1² + 10: there is nothing smaller
        match_width(count, 5, range(1, 101))
    with pytest.raises(UserError, match="only 26"):  # 4² + 10: nothing larger
        match_width(count, 1000, range(1, 5))


def test_every_memory_has_the_parameters_that_were_asked_for():
    tasks = parse_set({**SMALL, "parameters": 20_000}, "small").chosen(["Cart"])
    said: list[str] = []
    cells = plan(tasks, list(MEMORIES), "parameters", said.append).cells
    assert [cell.memory for cell in cells] == list(MEMORIES)
    for cell in cells:
        config = configured(cell)
        environment = make_environment(config, "train", 1)
        network = ActorCritic(config.network, environment.spec)
        environment.close()
        assert sum(each.numel() for each in network.parameters()) == cell.parameters
        assert abs(cell.parameters / 20_000 - 1) <= 0.05
        state = network.initial_state(1).get("shared", {})
        assert cell.state_bytes == sum(each.numel() * 4 for each in state.values())
    by_name = {cell.memory: cell for cell in cells}
    assert by_name["mamba"].width == by_name["mamba_flawed"].width
    assert by_name["none"].state_bytes == by_name["stack4"].state_bytes == 0
    assert by_name["gru"].state_bytes == 4 * by_name["gru"].width
    stacked = configured(by_name["stack4"]).environment.wrappers
    assert [each["id"] for each in stacked] == ["MaskObservation", "FrameStack"]
    equal = plan(tasks, ["gru", "trxl"], "width", said.append).cells
    assert [cell.width for cell in equal] == [8, 8]


# -------------------------------------------------------------------------------- the flaw


@pytest.mark.parametrize("flawed", [FlawedGRU, FlawedMamba, FlawedMamba2])
def test_a_flawed_memory_is_right_except_where_gradients_flow(flawed):
    torch.manual_seed(0)
    memory = flawed(flawed.Config(), 3)
    x, resets = torch.randn(6, 2, 3), torch.zeros(6, 2, dtype=torch.bool)
    resets[3] = True
    state = memory.initial_state(2)
    for each in x:  # some history
        _, state = memory.step(each, state)
    with torch.no_grad():
        right = memory.memory.sequence(x, state, resets)[0]
        assert torch.equal(memory.sequence(x, state, resets)[0], right)
    wrong = memory.sequence(x, state, resets)[0]
    assert not torch.allclose(wrong[:3], right[:3])  # it starts from nothing
    assert not torch.allclose(wrong[3:], right[3:])  # and runs over the reset
    nothing = torch.zeros_like(resets)
    expected = memory.memory.sequence(x, memory.initial_state(2), nothing)[0]
    assert torch.equal(wrong, expected)


def test_a_flawed_memory_steps_as_the_memory_does():
    torch.manual_seed(0)
    memory = FlawedGRU(FlawedGRU.Config(), 3)
    assert isinstance(memory.memory, GRU)
    x, state = torch.randn(2, 3), memory.initial_state(2)
    ours, theirs = memory.step(x, state), memory.memory.step(x, state)
    assert torch.equal(ours[0], theirs[0])


# ------------------------------------------------------------------------------- the sets


@pytest.mark.parametrize("name", SETS)
def test_the_shipped_sets_can_be_read_in_every_size(name: str):
    tasks = read_set(Path(name))
    assert tasks.tasks and "gpu" in tasks.sizes
    larger = tasks.sized("gpu")
    assert larger.parameters > tasks.parameters
    assert all(larger.tasks[each].steps > tasks.tasks[each].steps for each in larger.tasks)
    for task in tasks.tasks.values():
        assert not set(task.published) - set(DEFAULT)


@pytest.mark.parametrize("size", ["cpu", "gpu"])
@pytest.mark.parametrize("name", SETS)
def test_every_memory_of_a_shipped_set_has_a_network_of_its_size(name: str, size: str):
    """So that `scripts/ours/*.sh` run as they are."""
    tasks = read_set(Path(name)).sized(size)
    hardest = ["none", "stack4", "gtrxl"]  # all in the heads, the most inputs, the coarsest widths
    found = plan(tasks, hardest, "parameters", lambda line: None)
    left = [task for task in tasks.tasks if task not in found.skipped]  # whose package is here
    assert [(each.task, each.memory) for each in found.cells] == [
        (task, memory) for task in left for memory in hardest
    ]


def test_the_kept_results_are_of_the_set_as_it_is():
    """Else `--known` leaves them out: a preset has changed, and the set must pin what it was."""
    kept = read_results(ROOT / "benchmarks/results/memories/memory.json")
    own = [cell for cell in kept.cells if cell["memory"] == "gru"]
    tasks = read_set(Path("memory")).chosen([cell["task"] for cell in own])
    cells = plan(tasks, ["gru"], "parameters", lambda line: None).cells
    assert [cell.hash for cell in cells] == [cell["hash"] for cell in own]


def test_bad_sets_are_refused_with_all_problems():
    tree = {**SMALL, "parametres": 3, "sizes": {"gpu": {"steps": {"Crt": 5}}}}
    tree["tasks"] = {"Cart": {"base_config": "CartPole-v1:ppo", "step": 5}}
    with pytest.raises(ConfigError) as found:
        parse_set(tree, "bad")
    text = str(found.value)
    assert "parametres" in text and "did you mean 'parameters'" in text
    assert "tasks.Cart.step" in text and "did you mean 'steps'" in text
    with pytest.raises(ConfigError, match="name at least one"):
        parse_set({"title": "none"}, "bad")
    with pytest.raises(ConfigError, match=r"sizes.gpu.steps.Crt.*did you mean 'Cart'"):
        parse_set({**SMALL, "sizes": {"gpu": {"steps": {"Crt": 5}}}}, "bad")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--envs", "Crt"], "--envs Crt: there is no such task in small (did you mean 'Cart'?)"),
        (["--memories", "grv"], "--memories grv: no such memory (did you mean 'gru'?)"),
        (["--match", "widht"], "--match widht: no such way (did you mean 'width'?)"),
        (["--size", "gpus"], "--size gpus: small has no such size (known: cpu)"),
        (["--seeds", "1,x"], "--seed: write 1, 1,2,3 or 1-3, got '1,x'"),
        (["--known", "absent.json"], "there is no file absent.json"),
        (["--parameters", "50"], "Cart, none: no width gives 50 parameters within 5%"),
        (["--envs", "Absent"], "no task of this set can be made here"),
    ],
)
def test_a_wrong_word_is_one_line(tmp_path: Path, capsys, words, message):
    place = ["--set", str(written(tmp_path)), "--runs-dir", str(tmp_path / "runs")]
    assert main(["bench", "networks", *place, *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_without_optuna_nothing_is_begun(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    place = ["--set", str(written(tmp_path)), "--runs-dir", str(tmp_path / "runs")]
    assert main(["bench", "networks", *place]) == 2
    said = "error: this benchmark needs Optuna: pip install 'rl-lab[tune]'\n"
    assert capsys.readouterr().err == said and not (tmp_path / "runs").exists()


def test_an_unknown_set_names_the_nearest(capsys):
    assert main(["bench", "networks", "--set", "memry", "--dry-run"]) == 2
    assert "--set memry: there is no such set (did you mean 'memory'?)" in capsys.readouterr().err


# --------------------------------------------------------------------------------- reports


def record(memory: str, seed: int, last: float, **changes) -> Record:
    curve = [[100.0, last / 2], [200.0, last]]
    known = {"task": "Maze", "cell": f"hash-{memory}", "steps": 200, "best": last + 1}
    return Record(memory=memory, seed=seed, last=last, curve=curve, **known | changes)


@pytest.fixture
def results() -> Results:
    cells = [
        {"task": "Maze", "memory": memory, "title": MEMORIES[memory].title, "width": 8,
         "parameters": 3_000, "state_bytes": 32, "hash": f"hash-{memory}"}
        for memory in ("none", "gru")
    ]  # fmt: skip
    measures = ("steps_per_second", "update_ms", "latency_ms")
    timing = {
        name: {each: {"low": 1.0, "median": value, "high": 9.0} for each in measures}
        for name, value in (("Maze-none", 5.0), ("Maze-gru", 2.0))
    }
    facts = {"steps": 200, "threshold": 8.0, "published": {"gru": 7.5}, "published_steps": 5000}
    return Results(
        name="fixture",
        title="A <fixture>",
        seeds=[1, 2, 3],
        tasks={"Maze": facts},
        cells=cells,
        records=[record("none", 1, 2.0), record("gru", 1, 8.0), record("gru", 2, 10.0)],
        timing=timing,
        skipped={"Other": "it needs a package"},
    )


def test_what_the_runs_say_together(results: Results):
    none, gru = rows(results)
    assert (none.last, none.last_interval, none.seeds, none.reached) == (2.0, None, 1, 0)
    assert gru.last == 9.0 and gru.best == 10.0 and gru.last_interval == (8.0, 10.0)
    assert (gru.reached, gru.steps_to_threshold) == (2, 200.0)
    assert gru.timing["update_ms"] == 2.0
    assert results.missing() == ["Maze none 2", "Maze none 3", "Maze gru 3"]
    # Another threshold is reached at the first evaluation already: 8 / 2 = 4.
    assert results.records[1].reached(4.0) == 100.0 and results.records[1].reached(None) is None


def test_the_report_stands_alone(results: Results, tmp_path: Path):
    names = {path.name for path in write_page(results, tmp_path)}
    assert names == {
        "report.md", "report.html", "report.csv", "curves_Maze.svg",
        "steps.svg", "update.svg", "latency.svg", "state.svg",
    }  # fmt: skip
    page = (tmp_path / "report.html").read_text()
    assert "A &lt;fixture&gt;" in page and "<svg" in page
    links = re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?([^\"')\s>]+)", page)
    assert all(link.startswith(("data:", "#")) for link in links)  # nothing comes from elsewhere
    assert "@import" not in page and not re.search(r"<script[^>]+src", page)
    text = (tmp_path / "report.md").read_text()
    assert "| GRU (2 of 3 seeds) | **9** | 8 to 10 | 10 | 200 (2 of 2) | 2 |" in text
    assert "| **5** |" in text  # the fastest of a column stands out
    assert "published at 5,000 steps" in text and "Other: it needs a package" in text
    assert "Maze gru 3" in text  # still to be run
    lines = to_csv(results).splitlines()
    assert lines[2].startswith("Maze,gru,2,9.0,8.0,10.0,10.0,9.0,11.0,2,200.0,3000,32")


def test_results_survive_their_file(results: Results, tmp_path: Path):
    file = tmp_path / "kept.json"
    write_results(results, file)
    assert read_results(file) == results
    assert json.loads(file.read_text())["missing"] == results.missing()
    assert file.read_text().count('"memory": "gru", "seed"') == 2  # a line for each run
    copy = tmp_path / "deep" / "copy.json"
    assert main(["bench", "networks", "--report", str(file), "--output", str(copy)]) == 0
    assert (tmp_path / "report.html").exists() and read_results(copy) == results
    file.write_text('{"benchmark": "networks", "format": 1}')
    with pytest.raises(UserError, match=r"kept.json is damaged"):
        read_results(file)
    file.write_text('{"benchmark": "envs", "format": 1}')
    with pytest.raises(UserError, match="is not a result of bench networks"):
        read_results(file)


def test_results_of_two_times_join(results: Results, tmp_path: Path):
    """What is there stays; a cell that is configured otherwise elsewhere does not come in."""
    cells = [{**results.cells[0], "hash": "of-another"}, results.cells[1]]
    cells.append({**results.cells[1], "memory": "lstm", "title": "LSTM", "hash": "hash-lstm"})
    cells.append({**cells[-1], "task": "Hall"})
    runs = [record("none", 2, 7.0, cell="of-another"), record("gru", 2, -1.0)]
    runs += [record("gru", 3, 6.0), record("lstm", 4, 5.0), record("lstm", 1, 5.0, task="Hall")]
    tasks = {"Maze": {"steps": 9}, "Hall": results.tasks["Maze"]}
    timing = {"Maze-none": {}, "Maze-lstm": results.timing["Maze-gru"]}
    other = replace(results, cells=cells, records=runs, tasks=tasks, timing=timing, seeds=[4])
    other = replace(other, skipped={"Other": "an old reason", "Maze": "it was not there"})
    found = joined(results, other)
    values = {(each.label, each.seed): each.last for each in found.records}
    kept = {("Maze-none", 1): 2.0, ("Maze-gru", 1): 8.0, ("Maze-gru", 2): 10.0}
    came = {("Maze-gru", 3): 6.0, ("Maze-lstm", 4): 5.0, ("Hall-lstm", 1): 5.0}
    assert values == kept | came
    assert found.tasks == {"Hall": results.tasks["Maze"], **results.tasks}
    assert found.seeds == [1, 2, 3, 4] and found.cells[:2] == results.cells
    assert found.skipped == results.skipped
    assert set(found.timing) == {"Maze-none", "Maze-gru", "Maze-lstm"}
    assert found.timing["Maze-none"] == results.timing["Maze-none"]
    elsewhere = joined(results, replace(other, machine={"cpu": "another"}))
    assert elsewhere.timing == results.timing  # speeds of two machines are not compared

    place, known, output = (tmp_path / each for each in ("place.json", "known.json", "all.json"))
    write_results(results, place)
    write_results(other, known)
    words = ["--report", str(place), "--known", str(known), "--output", str(output)]
    assert main(["bench", "networks", *words]) == 0
    assert read_results(output) == found and read_results(place) == results
    assert "LSTM" in (tmp_path / "report.md").read_text()


def test_records_of_another_configuration_do_not_count(results: Results):
    other = replace(results.records[1], cell="hash-of-another", seed=3)
    again = replace(results.records[1], last=-1.0)
    found = with_records(results.records, [other, again], results.cells)
    assert found == results.records  # what is there goes before what comes


# ---------------------------------------------------------------------------- whole benchmarks


def run_names(folder: Path) -> list[str]:
    """The runs of a folder, without time and id."""
    return sorted(run.path.name.rsplit("-", 3)[0] for run in list_runs(folder))


@pytest.mark.needs("optuna")
def test_a_tiny_benchmark_from_end_to_end(tmp_path: Path, capsys):
    place = ["--set", str(written(tmp_path)), "--runs-dir", str(tmp_path / "runs")]
    words = ["bench", "networks", *place, "--memories", "none,gru", "--repeats", "1"]
    assert main([*words, "--seeds", "1,2", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "2 cells x 2 seeds = 4 runs, 0 known" in shown and not (tmp_path / "runs").exists()

    folder = tmp_path / "runs" / "benchmarks" / "small"
    assert main([*words, "--seeds", "1", "--output", str(tmp_path / "kept.json")]) == 0
    shown = capsys.readouterr().out
    assert "Absent is left out: unknown environment 'Absent/Missing-v0'" in shown
    assert "report.html" in shown and "steps to threshold" in shown
    assert run_names(folder) == ["small-Cart-gru-s1", "small-Cart-none-s1"]
    found = read_results(folder / "results.json")
    assert found.missing() == [] and set(found.timing) == {"Cart-none", "Cart-gru"}
    assert read_results(tmp_path / "kept.json") == found
    assert [each.steps for each in found.records] == [128, 128]

    # Another seed, and nothing twice; elsewhere what is known is not run at all.
    assert main([*words, "--seeds", "2"]) == 0
    assert len(run_names(folder)) == 4
    assert len(read_results(folder / "results.json").records) == 4
    known = ["--known", str(tmp_path / "kept.json"), "--name", "other", "--seeds", "1"]
    capsys.readouterr()
    assert main([*words, *known, "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert len(tree["records"]) == 2 and tree["missing"] == []
    assert run_names(tmp_path / "runs" / "benchmarks" / "other") == []

    # Other settings under the same name would mix what cannot be compared.
    assert main([*words, "--seeds", "1", "--steps", "64"]) == 2
    assert "was begun with other settings" in capsys.readouterr().err
    assert len(read_results(folder / "results.json").records) == 4  # as it was
    assert main(["bench", "networks", "--report", str(folder)]) == 0


@pytest.mark.needs("optuna")
def test_a_killed_benchmark_runs_every_cell_exactly_once(tmp_path: Path):
    file = written(tmp_path)
    words = [
        *(sys.executable, "-m", "rl_lab", "bench", "networks", "--set", str(file)),
        *("--runs-dir", str(tmp_path / "runs"), "--memories", "none,gru", "--seeds", "1"),
        *("--no-timing", "--steps", "512"),
    ]
    folder = tmp_path / "runs" / "benchmarks" / "small"
    rng = random.Random(1)
    for kill in range(2):  # once while each run is at work
        process = subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while len(list(folder.glob("small-*"))) <= kill and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 1.5))
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert subprocess.run(words, check=False, stdout=subprocess.DEVNULL).returncode == 0
    assert run_names(folder) == ["small-Cart-gru-s1", "small-Cart-none-s1"]
    found = read_results(folder / "results.json")
    assert len(found.records) == 2 and found.missing() == []
    assert {each.steps for each in found.records} == {512}
    straight = tmp_path / "straight"
    assert main([*words[3:], "--runs-dir", str(straight)]) == 0
    undisturbed = read_results(straight / "benchmarks" / "small" / "results.json").records
    assert [each.curve for each in undisturbed] == [each.curve for each in found.records]
    assert [each.last for each in undisturbed] == [each.last for each in found.records]


# ----------------------------------------------------------------------------------- doors


@pytest.mark.parametrize("door", ["atari", "mujoco", "minigrid", "classic_control"])
def test_the_doors_call_the_command(door: str):
    script = ROOT / "scripts" / "ours" / f"{door}.sh"
    done = subprocess.run(
        ["bash", str(script), "--help"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHON": sys.executable},
        check=False,
    )
    assert done.returncode == 0 and "--memories" in done.stdout
    assert f"--set {door} " in script.read_text()
