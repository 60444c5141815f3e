"""Every subcommand of `rl-lab bench` runs for real, as small as it can be. No speed is judged."""

import json

import pytest
import torch

from rl_lab.algorithms import ppo
from rl_lab.benchmarking.profile import STAGES
from rl_lab.cli.main import main
from rl_lab.envs.classic import ClassicVector
from tiny_runs import SMALL, SMALL_PPO, tiny_run

PPO = "CartPole-v1:ppo_defaults"
QUICK = ["--repeats", "2", "--seconds", "0.01"]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RL_LAB_RUNS", str(tmp_path / "runs"))
    return tmp_path


def bench(capsys, *words):
    """The result as a program sees it."""
    assert main(["bench", *words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in report["rows"]}
    for row in rows.values():
        if "detail" not in row:
            assert len(row["samples"]) == report["settings"]["repeats"]
            assert row["value"]["low"] <= row["value"]["median"] <= row["value"]["high"]
            assert row["ratio"]["low"] <= row["ratio"]["median"] <= row["ratio"]["high"]
    return report, rows


def test_envs_measures_every_backend_that_works(capsys):
    report, rows = bench(capsys, "envs", "CartPole-v1", "Pendulum-v1", "--num-envs", "2", *QUICK)
    works = [name for name, row in rows.items() if "detail" not in row]
    assert [name for name in works if "envpool" not in name] == [  # that one is optional
        "CartPole-v1 x 2 sync",
        "CartPole-v1 x 2 native",
        "CartPole-v1 x 2 process",
        "CartPole-v1 x 2 torch",
        "Pendulum-v1 x 2 sync",
        "Pendulum-v1 x 2 process",
        "Pendulum-v1 x 2 torch",
    ]
    assert "no native vector" in rows["Pendulum-v1 x 2 native"]["detail"]
    assert all(rows[name]["ratio"]["median"] == 1 for name in works if name.endswith("sync"))
    assert report["machine"]["cpu_count"] >= 1


def test_collect_compares_with_a_random_policy_and_bare_environments(capsys):
    words = [*SMALL, *SMALL_PPO]
    report, rows = bench(capsys, "collect", PPO, *words, *QUICK)
    assert list(rows) == ["policy", "random policy", "environment only"]
    assert report["settings"]["config"]["environment"]["num_envs"] == 4


@pytest.mark.parametrize("name", ["dqn", "r2d2"])
def test_update_times_a_minibatch_of_a_replay_buffer(capsys, name):
    words = ["algorithm.batch_size=4", "buffers.replay.capacity=400", "--compile", "off", *QUICK]
    _, rows = bench(capsys, "update", f"CartPole-v1:{name}_defaults", *words)
    assert list(rows) == ["update, eager"]
    assert rows["update, eager"]["value"]["median"] > 0


def test_update_times_every_hook_on_the_same_state(capsys, monkeypatch):
    seen, update = [], ppo.PPO.update

    def watched(self, batch, *, phase):
        flat = torch.cat([each.flatten() for each in self.model.parameters()])
        seen.append(flat.detach().clone())
        return update(self, batch, phase=phase)

    monkeypatch.setattr(ppo.PPO, "update", watched)
    _, rows = bench(capsys, "update", PPO, *SMALL, *SMALL_PPO, "--compile", "off", *QUICK)
    assert list(rows) == ["update, eager"]
    assert len(seen) >= 3
    assert all(torch.equal(each, seen[1]) for each in seen[2:])  # the first call only warms up
    assert not torch.equal(seen[0], seen[1])


def test_profile_of_a_spec_and_of_a_run(capsys, place):
    step = ClassicVector.step
    _, rows = bench(capsys, "profile", PPO, *SMALL, *SMALL_PPO, "--steps", "512", "--repeats", "2")
    assert list(rows) == [*STAGES, "total"]
    assert all(rows[name]["value"]["median"] > 0 for name in STAGES)
    shares = [rows[name]["samples"][0] for name in STAGES]
    assert sum(shares) == pytest.approx(rows["total"]["samples"][0])
    assert ClassicVector.step is step  # nothing stays timed
    assert not (place / "runs").exists()  # it leaves no run behind

    run = tiny_run(place / "runs", PPO, "environment.num_envs=2").run
    before = sorted(place.rglob("*"))
    report, _ = bench(capsys, "profile", "@last", "--steps", "256", "--repeats", "1")
    assert report["settings"]["config"]["environment"]["num_envs"] == 2
    assert sorted(place.rglob("*")) == before  # runs are only read
    assert main(["bench", "profile", run.id, "algorithm.gamma=0.9"]) == 2
    assert "is a run" in capsys.readouterr().err


def test_the_default_place_is_used_only_if_it_exists(capsys, place):
    words = ["bench", "envs", "CartPole-v1", "--num-envs", "1", "--repeats", "1"]
    words += ["--seconds", "0.01"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "CartPole-v1 x 1 sync" in shown and "ratio: to sync" in shown and "load" in shown
    assert not (place / "benchmarks").exists()
    (place / "benchmarks" / "results").mkdir(parents=True)
    assert main(words) == 0
    assert (place / "benchmarks" / "results" / "envs.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("envs CartPol-v1", "did you mean 'CartPole-v1'"),
        ("envs --num-envs 8,x", "--num-envs 8,x: write numbers from 1"),
        ("envs --num-envs 0", "--num-envs 0: write numbers from 1"),
        ("envs --repeats 0", "--repeats"),
        ("envs --output there.txt", "ends in .json"),
        ("collect CartPole-v1:poo", "did you mean 'ppo'?"),
        ("collect CartPole-v1:ppo Acrobot-v1:ppo", "name one experiment"),
        ("collect algorithm.gamma=0.9", "name one experiment"),
        ("update CartPole-v1:ppo --compile maybe", "write both, off or on"),
        ("update CartPole-v1:random --compile off", "random has no update"),
        ("profile @last", "there are no runs"),
        ("profile CartPole-v1:poo", "did you mean 'ppo'?"),
        (f"profile {PPO} --steps 1024 --repeats 1", "give more"),
    ],
)
def test_mistakes_are_one_line(capsys, place, words, said):
    assert main(["bench", *words.split()]) == 2
    told = capsys.readouterr()
    errors = [line for line in told.err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1 and said in errors[0]
    assert list(place.iterdir()) == []


def test_help_teaches(capsys):
    assert main(["bench"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("envs", "collect", "update", "peers", "profile"))
