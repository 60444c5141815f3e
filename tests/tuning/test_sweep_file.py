"""Sweep files: ours, W&B's, and what is wrong with them."""

from pathlib import Path

import pytest
import yaml

from rl_lab.config.documents import PACKAGE_CONFIGS
from rl_lab.core.errors import ConfigError, UserError
from rl_lab.tuning.driver import check
from rl_lab.tuning.space import Choice, Range
from rl_lab.tuning.sweep_file import parse_sweep, read_sweep

OURS = {"name": "s", "base_config": "CartPole-v1:ppo", "sweep": {"algorithm.gamma": [0.9, 0.99]}}


def test_a_short_file_is_a_grid_with_one_seed():
    sweep = parse_sweep(OURS)
    assert (sweep.method, sweep.seeds, sweep.parallel_jobs) == ("grid", (1,), 1)
    assert sweep.objective.metric == "eval/return_mean"
    assert parse_sweep({**OURS, "trials": 3}).method == "tpe"
    ranged = {**OURS, "sweep": {"a": {"min": 0.0, "max": 1.0}}, "trials": 5, "seeds": 3}
    assert parse_sweep(ranged).method == "tpe"
    assert parse_sweep(ranged).seeds == (1, 2, 3)
    assert parse_sweep({**ranged, "seeds": [7, 9]}).seeds == (7, 9)
    assert parse_sweep({**OURS, "objective": {"metric": "loss"}}).objective.metric == "train/loss"


def test_the_design_s_own_example(tmp_path: Path):
    (tmp_path / "ppo_cartpole.yaml").write_text("environment: {id: CartPole-v1}\n")
    file = tmp_path / "ppo_sweep.yaml"
    file.write_text(
        """
base_config: ppo_cartpole.yaml
sweep:
  algorithm.lr: [1e-4, 3e-4, 1e-3]
  algorithm.clip_ratio: [0.1, 0.2, 0.3]
  network.actor.hidden_dims: [[64, 64], [128, 128], [256, 256]]
parallel_jobs: 4
"""
    )
    sweep = read_sweep(file)
    assert sweep.name == "ppo_sweep" and sweep.parallel_jobs == 4
    assert sweep.base_config == str(tmp_path / "ppo_cartpole.yaml")
    points = list(sweep.space.points())
    assert len(points) == 27
    assert points[0]["algorithm.lr"] == 1e-4
    assert points[-1]["network.actor.hidden_dims"] == [256, 256]


def test_a_file_of_w_and_b():
    tree = yaml.safe_load(
        """
program: train.py
method: bayes
metric: {name: eval/return_mean, goal: maximize}
run_cap: 12
early_terminate: {type: hyperband}
parameters:
  algorithm.learning_rate: {distribution: log_uniform_values, min: 1e-5, max: 1e-2}
  algorithm.epochs: {values: [4, 8]}
  algorithm.clip_range: {value: lin_0.2}
command: [python, train.py]
"""
    )
    sweep = parse_sweep({"name": "w", **tree}, base="CartPole-v1:ppo")
    assert (sweep.method, sweep.trials, sweep.pruner) == ("tpe", 12, "hyperband")
    assert (sweep.objective.metric, sweep.objective.direction) == ("eval/return_mean", "max")
    assert sweep.space.dimensions == {
        "algorithm.learning_rate": Range(1e-5, 1e-2, log=True),
        "algorithm.epochs": Choice((4, 8)),
        "algorithm.clip_range": Choice(("lin_0.2",)),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"swep": {}}, "there is no 'swep' in a sweep"),
        ({"base_config": ""}, "base_config: name an experiment"),
        ({"base_config": "no_such.yaml"}, "there is no file no_such.yaml"),
        ({"sweep": {}}, "there is nothing to try"),
        ({"method": "gird"}, r"method: must be 'grid'.* got 'gird' \(did you mean 'grid'\?\)"),
        ({"method": "tpe"}, "trials: say how many"),
        ({"pruner": "ash"}, "pruner: must be .* got 'ash'"),
        ({"name": "a" * 41}, "names folders"),
        ({"name": "../a"}, "names folders"),
        ({"sweep": {"experiment.seed": [1, 2]}}, "experiment.seed: the sweep sets it itself"),
        ({"fixed": {"experiment.name": "x"}}, "experiment.name: the sweep sets it itself"),
        ({"grace_steps": -1}, "grace_steps: must be at least 0, got -1"),
        ({"parallel_jobs": 0}, "parallel_jobs: must be at least 1, got 0"),
        ({"seeds": [1, 1]}, "seeds: must be different"),
        ({"fixed": {"algorithm.gamma": 1}}, "the sweep tries values of it already"),
        ({"objective": {"of": "first"}}, r"objective\.of: must be 'last' or 'best'"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, change: dict, message: str):
    file = tmp_path / "bad.yaml"
    file.write_text(yaml.safe_dump({**OURS, **change}))
    with pytest.raises(ConfigError, match=message) as caught:
        read_sweep(file)
    assert str(caught.value).startswith(str(file))


def test_what_is_tried_first():
    poor = {"algorithm.gamma": "9e-1"}
    sweep = parse_sweep({**OURS, "trials": 3, "first": poor})
    assert sweep.space.first == ({"algorithm.gamma": 0.9},)
    assert parse_sweep({**OURS, "trials": 3, "first": [poor, poor]}).space.first[1] == {
        "algorithm.gamma": 0.9
    }
    with pytest.raises(ConfigError, match="a grid tries all of its points"):
        parse_sweep({**OURS, "first": poor})


SHIPPED = sorted(PACKAGE_CONFIGS.glob("sweep/*.yaml"))


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_sweeps_are_found_by_name_and_would_run(file: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = read_sweep(Path(file.stem))
    check(sweep)
    assert sweep == read_sweep(file)
    (tmp_path / "configs" / "sweep").mkdir(parents=True)
    own = tmp_path / "configs" / "sweep" / file.name
    own.write_text(yaml.safe_dump({**OURS, "name": "mine"}))
    assert read_sweep(Path(file.stem)).name == "mine"  # the user's own comes first
    with pytest.raises(UserError, match=f"did you mean '{file.stem}'"):
        read_sweep(Path(f"{file.stem}x"))


def test_the_tutorial_shows_the_shipped_file():
    page = Path(__file__).parents[2] / "docs" / "sweeps.md"
    shown = (PACKAGE_CONFIGS / "sweep" / "cartpole_ppo.yaml").read_text()
    assert f"```yaml\n{shown}```" in page.read_text()


def test_files_that_are_none(tmp_path: Path):
    with pytest.raises(UserError, match="cannot read"):
        read_sweep(tmp_path / "missing.yaml")
    (tmp_path / "list.yaml").write_text("[1, 2]")
    with pytest.raises(UserError, match="is not a sweep"):
        read_sweep(tmp_path / "list.yaml")
    (tmp_path / "broken.yaml").write_text("a: [1")
    with pytest.raises(UserError, match="is not YAML"):
        read_sweep(tmp_path / "broken.yaml")


def test_the_sweep_file_of_a_clone_with_the_keys_of_before(monkeypatch, capsys):
    from pathlib import Path

    from rl_lab.cli.main import main
    from rl_lab.tuning.driver import configuration

    monkeypatch.chdir(Path(__file__).parents[2])
    sweep = read_sweep(Path("configs/sweeps/ppo_sweep.yaml"))
    point = next(iter(sweep.space.points()))
    assert configuration(sweep, point).tree["algorithm"]["learning_rate"] == 1e-4
    assert main(["sweep", "--config", "configs/sweeps/ppo_sweep.yaml", "--dry-run"]) == 0
    assert "27 trials x 1 seeds = 27 runs, 4 at a time" in capsys.readouterr().out
    assert main(["sweep"]) == 2
    assert "name one sweep file" in capsys.readouterr().err
