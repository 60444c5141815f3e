"""A run ends at its budget, is evaluated and saved on the way, and says where it cannot."""

import json
from pathlib import Path
from typing import Any

import pytest

from rl_lab.algorithms.ppo import PPOConfig
from rl_lab.config.compose import compose
from rl_lab.config.presets import list_presets
from rl_lab.config.resolve import interval, resolve
from rl_lab.config.tree import to_tree
from rl_lab.display.sinks import Sinks
from rl_lab.records.run_directory import RunDirectory
from rl_lab.run.build import build_run
from rl_lab.run.session import resume
from tiny_runs import run_hash, tiny_config, tiny_orchestrator, tiny_run

AUTO = ("evaluation.every_steps=auto", "checkpoint.every_steps=auto")


def said(folder: Path) -> str:
    return (folder / "logs" / "run.log").read_text()


@pytest.mark.parametrize(
    ("spec", "words", "total", "end"),
    [
        ("CartPole-v1:ppo_defaults", [], 20, 20),  # less than one rollout of 64
        ("CartPole-v1:ppo_defaults", [], 100, 100),
        ("CartPole-v1:ppo_defaults", [], 68, 68),  # a last rollout of one step
        ("CartPole-v1:ppo_defaults", ["algorithm.batch_size=1.0"], 100, 100),
        ("CartPole-v1:ppo_gru_defaults", ["algorithm.batch_size=1.0"], 100, 100),
        ("CartPole-v1:ppo_gru_defaults", [], 100, 100),
        (
            "CartPole-v1:ppo_gru_defaults",
            ["algorithm.sequence_length=8"],
            104,
            104,
        ),  # 10 steps: two of 5
        ("CartPole-v1:reinforce", ["algorithm.rollout_steps=16"], 100, 100),
        ("CartPole-v1:random", ["algorithm.collect_steps=16"], 100, 100),
        ("FrozenLake-v1:q_learning", ["algorithm.rollout_steps=16"], 100, 100),
        ("CartPole-v1:dqn", ["algorithm.train_every=16", "algorithm.learning_starts=32"], 100, 100),
    ],
)
def test_a_run_ends_at_its_budget(
    tmp_path: Path, spec: str, words: list[str], total: int, end: int
) -> None:
    words = [*words, f"training.total_timesteps={total}"]
    outcome = tiny_run(tmp_path, spec, *words)
    assert outcome.summary["env_steps"] == end
    assert "the run ends after" not in said(outcome.run.path)


def test_a_last_rollout_is_one_minibatch_at_least_and_the_overshoot_is_told(tmp_path: Path) -> None:
    # Four sequences of 16 in 4 minibatches: 68 leaves one step, and four are collected.
    words = ["algorithm.batch_size=null", "training.total_timesteps=68"]
    outcome = tiny_run(tmp_path, "CartPole-v1:ppo_gru_defaults", *words)
    assert outcome.summary["env_steps"] == 80
    assert (
        "WARNING: the run ends after 80 steps, not after total_timesteps 68: "
        "the last rollout has 4 steps of each environment at least"
    ) in said(outcome.run.path)


@pytest.mark.parametrize(("total", "end", "prefix"), [(70, 128, "WARNING: "), (6399, 6400, "")])
def test_environments_that_step_together_and_so_pass_the_budget_are_told(
    tmp_path: Path, total: int, end: int, prefix: str
) -> None:
    words = ["environment.num_envs=64", f"training.total_timesteps={total}"]
    config = resolve(tiny_config("CartPole-v1:dqn", *words))
    lines: list[str] = []
    sinks = Sinks([])
    sinks.say = lines.append  # type: ignore[method-assign]
    build_run(config, lambda: RunDirectory.create(tmp_path, "tiny"), sinks)[0].close()
    assert (
        f"{prefix}the run ends after {end:,} steps, not after total_timesteps {total:,}: "
        "all 64 environments take a step at a time"
    ) in lines


def test_the_equal_minibatches_are_equal_and_not_smaller_than_the_others() -> None:
    config = PPOConfig(rollout_steps=16, minibatches=4)  # of 4 envs: 64 rows, 16 in a minibatch
    counts = {rows: config.equal_minibatches(rows, rows, 64) for rows in (16, 20, 36, 44, 48, 60)}
    assert counts == {16: 1, 20: 1, 36: 2, 44: 2, 48: 3, 60: 3}
    assert config.equal_minibatches(52, 52, 64) == 2  # 52 rows are no three equal parts
    # with a memory: sequences of 8 at most, so 12 steps are two of 6, and 13 are two of 7
    config = PPOConfig(rollout_steps=16, minibatches=4, sequence_length=8)
    assert [config.last_rollout(steps, True, 4) for steps in (1, 5, 8, 12, 13)] == [4, 5, 8, 12, 14]


def test_a_compiled_rollout_keeps_its_length(tmp_path: Path) -> None:
    run = tiny_orchestrator(tmp_path, "CartPole-v1:ppo_defaults", "training.total_timesteps=100")
    assert run.workflow.shortened(9) == 9
    config: Any = run.workflow.context.config
    object.__setattr__(config.compute, "compile", "on")
    assert run.workflow.shortened(9) == 16
    run.close()


def test_a_shortened_last_rollout_resumes_bit_for_bit(tmp_path: Path) -> None:
    words = ["training.total_timesteps=344", "checkpoint.every_steps=64"]
    straight = tiny_run(tmp_path / "a", "CartPole-v1:ppo_gru_defaults", *words).run
    other = tiny_run(tmp_path / "b", "CartPole-v1:ppo_gru_defaults", *words).run
    resume(f"{other.path}:320", root=tmp_path / "b")
    assert run_hash(other) == run_hash(straight)


def evaluated(run: Any) -> list[int]:
    rows = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    return [row["step"] for row in rows if "eval/return_mean" in row]


def test_a_short_run_is_evaluated_five_times_and_at_its_end(tmp_path: Path) -> None:
    outcome = tiny_run(tmp_path, "CartPole-v1:ppo_defaults", *AUTO, "training.total_timesteps=640")
    assert evaluated(outcome.run) == [128, 256, 384, 512, 640]
    assert outcome.summary["best"] is not None
    written = outcome.run.config_file.read_text()
    assert "every_steps: 128" in written and "every_steps: auto" not in written
    assert "evaluation.every_steps=128" in said(outcome.run.path)


def test_the_end_is_evaluated_whatever_the_interval(tmp_path: Path) -> None:
    words = ("evaluation.every_steps=256", "training.total_timesteps=320")
    assert evaluated(tiny_run(tmp_path, "CartPole-v1:ppo_defaults", *words).run) == [256, 320]


def test_no_evaluation_where_none_is_wanted(tmp_path: Path) -> None:
    words = ("training.total_timesteps=64",)
    for more in ("evaluation.every_steps=0", "evaluation.warmup_steps=64"):
        assert evaluated(tiny_run(tmp_path, "CartPole-v1:ppo_defaults", *words, more).run) == []


@pytest.mark.parametrize(
    ("total", "steps"), [(100, 20), (40_000, 8_000), (100_000, 10_000), (1_000_000, 10_000)]
)
def test_automatic_intervals(total: int, steps: int) -> None:
    assert interval("auto", 10_000, total) == steps
    assert interval(7, 10_000, total) == 7 and interval(0, 10_000, total) == 0


@pytest.mark.parametrize("preset", list_presets())
def test_a_preset_with_a_short_budget_is_evaluated_five_times(preset: str) -> None:
    tree = compose(preset, ["training.total_timesteps=1e3"]).tree
    every = tree.get("evaluation", {}).get("every_steps", "auto")
    assert interval(every, 10_000, 1_000) <= 200  # 0: never, as the preset says


def test_an_interval_that_was_typed_or_that_fits_stays(tmp_path: Path) -> None:
    def every(*words: str) -> Any:
        return compose("CartPole-v1:dqn", words).tree["evaluation"]["every_steps"]

    assert every() == every("training.total_timesteps=25_000") == 5_000
    assert every("training.total_timesteps=24_000") == "auto"
    assert every("training.total_timesteps=1000", "evaluation.every_steps=900") == 900
    assert every("training.total_timesteps=900_000") == 5_000


def test_a_memory_gets_sequences_that_fill_the_minibatches() -> None:
    words = ["environment.num_envs=16", "algorithm.rollout_steps=256", "algorithm.minibatches=32"]
    config = resolve(tiny_config("Acrobot-v1:ppo_gru_defaults", *words))
    assert config.algorithm.sequence_length == 128  # 32 sequences
    assert to_tree(config)["algorithm"]["sequence_length"] == 128
    fits = resolve(tiny_config("CartPole-v1:ppo_gru_defaults"))
    assert fits.algorithm.sequence_length is None  # four whole ones
