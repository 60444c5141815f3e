"""The Python interface: what the command line does, from a program."""

import builtins
import sys

import gymnasium as gym
import numpy as np
import pytest

import rl_lab
from rl_lab import api
from rl_lab.core import registry
from rl_lab.core.errors import ConfigError, UserError
from rl_lab.core.state import fingerprint
from rl_lab.records.columns import read_columns
from rl_lab.records.metrics import read_metrics
from rl_lab.records.run_directory import find_run
from rl_lab.run import session
from tiny_runs import SMALL, SMALL_PPO, final_state, run_hash


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two runs: plain PPO with a good score, and one with a memory."""
    root = tmp_path_factory.mktemp("runs")
    words = [*SMALL, *SMALL_PPO]
    rl_lab.train("CartPole-v1:ppo_defaults", seed=1, runs_dir=root, overrides=words)
    rl_lab.train(
        "Pendulum-v1:ppo_gru_defaults",
        seed=2,
        runs_dir=root,
        overrides=[*words, "environment.vectorization=sync"],
    )
    return root


def test_train_is_the_command(tmp_path):
    settings = {"algorithm.gamma": 0.9, "network.encoder": {"type": "mlp", "hidden_dims": [8]}}
    outcome = rl_lab.train(
        "CartPole-v1:ppo_defaults",
        seed=3,
        total_timesteps=5.12e2,
        runs_dir=tmp_path,
        overrides=[*SMALL, *SMALL_PPO],
        **settings,
    )
    assert outcome.exit_code == 0 and outcome.summary["env_steps"] == 512
    assert outcome.summary["seed"] == 3
    assert session.load_config(outcome.run).algorithm.gamma == 0.9
    before = run_hash(outcome.run)
    assert rl_lab.resume(outcome.run.id, runs_dir=tmp_path).exit_code == 0
    assert run_hash(outcome.run) == before


def test_fork_and_verify_are_the_commands(tmp_path):
    words = [*SMALL, *SMALL_PPO, "checkpoint.keep_last=9"]
    parent = rl_lab.train(
        "CartPole-v1:ppo_defaults", seed=1, runs_dir=tmp_path, overrides=words
    ).run
    before = run_hash(parent)
    settings = {"algorithm.gamma": 0.9}
    outcome = rl_lab.fork(
        f"{parent.id}:256", seed=2, total_timesteps=512, runs_dir=tmp_path, **settings
    )
    assert outcome.exit_code == 0 and outcome.summary["env_steps"] == 512
    assert outcome.summary["parent"] == {"id": parent.id, "step": 256}
    config = session.load_config(outcome.run)
    assert (config.algorithm.gamma, config.experiment.seed) == (0.9, 2)
    assert run_hash(parent) == before

    verdict = rl_lab.verify(parent.id, start=512, steps=256, runs_dir=tmp_path)
    assert verdict.identical and (verdict.start, verdict.end) == (512, 768)
    rows = parent.metrics_file.read_text().splitlines(keepends=True)
    parent.metrics_file.write_text("".join([rows[0].replace("1", "2", 1), *rows[1:]]))
    found = rl_lab.verify(parent.id, runs_dir=tmp_path)
    assert not found.identical and found.difference.step <= 64


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 2.5e-4, "lin_3e-4", 'a "quoted" \\ word', [1, [2]], {"a": {"b": [1, "x y"]}}],
)
def test_python_values_become_overrides(value):
    from rl_lab.config.compose import compose

    assert compose(None, [api.as_override("components.x", value)]).tree["components"]["x"] == value


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"sed": 1}, "train() has no argument 'sed' (did you mean 'seed'?)"),
        (
            {"learning_rate": 1e-3},
            "train() has no argument 'learning_rate' "
            '(did you mean **{"algorithm.learning_rate": …}?)',
        ),
        ({"zzz": 1}, "train() has no argument 'zzz'"),
        ({"algorithm.gama": 1}, "algorithm.gama: unknown key (did you mean 'gamma'?)"),
        ({"seed": "x"}, "experiment.seed: must be a whole number, got 'x'"),
        ({"seed": [1, 1]}, "seed: give at least one, and none twice, got [1, 1]"),
        ({"seed": []}, "seed: give at least one, and none twice, got []"),
    ],
)
def test_bad_arguments_are_told_in_words_of_python(tmp_path, arguments, said):
    with pytest.raises(UserError) as error:
        rl_lab.train("CartPole-v1:ppo", runs_dir=tmp_path, **arguments)
    assert str(error.value) == said
    assert not list(tmp_path.iterdir())


def test_a_fork_names_itself(root):
    with pytest.raises(ConfigError, match=r"fork\(\) has no argument 'sed'"):
        rl_lab.fork("CartPole", runs_dir=root, sed=1)


def test_several_seeds_are_several_outcomes(tmp_path):
    words = [*SMALL, *SMALL_PPO, "training.total_timesteps=128"]
    both = rl_lab.train("CartPole-v1:ppo_defaults", seed=[1, 2], runs_dir=tmp_path, overrides=words)
    assert [each.summary["seed"] for each in both] == [1, 2]
    forks = rl_lab.fork("@last", seed=range(3, 5), total_timesteps=256, runs_dir=tmp_path)
    assert [each.summary["seed"] for each in forks] == [3, 4]
    assert {each.summary["parent"]["id"] for each in forks} == {both[1].run.id}
    (one,) = rl_lab.train("CartPole-v1:ppo_defaults", seed=[5], runs_dir=tmp_path, overrides=words)
    assert one.exit_code == 0


# -------------------------------------------------------------------------- progress


def trained(tmp_path, **more):
    words = [*SMALL, *SMALL_PPO, "training.total_timesteps=128"]
    return rl_lab.train("CartPole-v1:ppo_defaults", runs_dir=tmp_path, overrides=words, **more)


def test_a_script_is_silent_and_a_terminal_shows_progress(tmp_path, capsys, monkeypatch):
    trained(tmp_path)
    assert capsys.readouterr().out == ""
    trained(tmp_path, progress=True)
    lines = capsys.readouterr().out
    assert "CartPole-v1 ppo · seed 0 · run " in lines and "128/128" in lines
    monkeypatch.setenv("FORCE_COLOR", "1")  # to rich, a terminal
    trained(tmp_path)
    assert "128/128" in capsys.readouterr().out
    rl_lab.resume("@last", runs_dir=tmp_path, progress=False)
    assert capsys.readouterr().out == ""
    trained(tmp_path, **{"logging.terminal": False})
    assert capsys.readouterr().out == ""


def test_a_notebook_gets_plain_lines(tmp_path, capsys, monkeypatch):
    class ZMQInteractiveShell:  # what IPython says of itself in Jupyter
        pass

    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    trained(tmp_path)
    out = capsys.readouterr().out
    assert "128/128  100%" in out and "\x1b" not in out


def test_without_progress_warnings_are_pythons(tmp_path):
    with pytest.warns(UserWarning, match="never reached"):
        trained(
            tmp_path,
            **{
                "training.phases": [
                    {"name": "one", "duration_steps": 500, "hooks": ["collect", "update"]},
                    {"name": "two", "duration_steps": 500, "hooks": ["collect", "update"]},
                ]
            },
        )


# --------------------------------------------------------------------------- results


def test_everything_that_is_returned_has_a_short_repr(root, tmp_path):
    outcome = trained(tmp_path)
    run = outcome.run.id
    test = outcome.summary["test"]["last"]["return_mean"]
    assert repr(outcome) == (
        f"Run(run='{run}', status='finished', env_steps=128, test_return={test:.4g})"
    )
    found = rl_lab.evaluate(run, episodes=3, runs_dir=tmp_path)
    assert repr(found) == (
        f"Evaluation(return_mean={found.return_mean:.4g}, return_std={found.return_std:.4g}, "
        f"episodes=3, run='{run}', step=128)"
    )
    policy = rl_lab.load_policy(run, runs_dir=tmp_path)
    assert repr(policy) == f"Policy(CartPole-v1 ppo, run='{run}', step=128)"
    verdict = rl_lab.verify(run, runs_dir=tmp_path)
    assert repr(verdict).startswith(f"Verdict(run='{run}', identical=True, start=0, end=128, rows=")
    columns = outcome.metrics()
    assert repr(columns).startswith(f"Columns({len(columns['step'])} rows: collect/")
    played = rl_lab.play(run, max_steps=2, video=tmp_path / "a.gif", runs_dir=tmp_path)
    assert repr(played) == (
        f"Playback(return_mean=2, episodes=1, video='{tmp_path}/a.gif', run='{run}', step=128)"
    )


@pytest.mark.parametrize("episodes", [0, -1, 2.5])
def test_a_number_of_episodes_is_checked(root, episodes):
    with pytest.raises(UserError, match=r"episodes: must be a whole number of at least 1"):
        rl_lab.evaluate("@last", episodes=episodes, runs_dir=root)


def test_evaluate_returns_one_object(root):
    found = rl_lab.evaluate("CartPole", episodes=3, runs_dir=root)
    assert found.episodes == len(found.returns) == len(found.lengths) == 3
    assert found.return_mean == np.mean(found.returns)
    assert found.return_std == np.std(found.returns)
    assert found.to_tree()["run"] == found.run


def test_metrics_are_columns(root):
    columns = rl_lab.metrics("CartPole", runs_dir=root)
    rows = read_metrics(find_run("CartPole", root)[0].metrics_file)
    assert columns["step"].tolist() == [row["step"] for row in rows]
    assert set(columns) == {name for row in rows for name in row}
    for name, column in columns.items():
        expected = [row.get(name, np.nan) for row in rows]
        np.testing.assert_array_equal(column, expected)
    steps, scores = columns.of("eval/return_mean")
    assert steps.tolist() == [256, 512, 768, 1024] and np.isfinite(scores).all()
    with pytest.raises(UserError, match="did you mean 'eval/return_mean'"):
        columns.of("eval/return_men")


def test_a_run_without_rows_has_no_columns_but_the_step(tmp_path):
    assert dict(read_columns(tmp_path / "metrics.jsonl")).keys() == {"step"}


def test_pandas_is_optional(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)  # as if it were not installed
    with pytest.raises(UserError, match="no DataFrame without pandas: pip install pandas"):
        rl_lab.metrics("CartPole", runs_dir=root).to_pandas()


@pytest.mark.needs("pandas")
def test_a_data_frame_has_the_steps_as_its_index(root):
    columns = rl_lab.metrics("CartPole", runs_dir=root)
    frame = columns.to_pandas()
    assert frame.index.tolist() == columns["step"].tolist()
    assert frame["eval/return_mean"].notna().sum() == 4


def test_runs_are_rows(root):
    assert [row["seed"] for row in rl_lab.runs(runs_dir=root)] == [1, 2]
    (row,) = rl_lab.runs(runs_dir=root, environment="Pendulum-v1")
    assert row["algorithm"] == "ppo" and row["status"] == "finished"


def test_load_policy_acts_on_one_observation_and_on_a_batch(root):
    policy = rl_lab.load_policy("@best:CartPole-v1", runs_dir=root)
    environment = gym.make("CartPole-v1")
    obs, _ = environment.reset(seed=0)
    action = policy.act(obs)
    environment.step(action)
    batch = policy.act(np.stack([obs, -obs, obs]))
    assert batch.shape == (3,) and batch[0] == batch[2] == action
    samples = [policy.act(obs, deterministic=False) for _ in range(50)]
    assert set(samples) == {0, 1}
    with pytest.raises(ValueError, match=r"shape \(3,\)"):
        policy.act(obs[:3])


def test_a_recurrent_policy_remembers_until_it_is_reset(root):
    policy = rl_lab.load_policy("Pendulum", runs_dir=root)
    obs, high = np.array([1.0, 0.0, 0.5]), np.array([2.0])
    first, second = policy.act(obs), policy.act(obs)
    assert first.dtype == np.float32 and (np.abs(first) <= high).all()
    assert not np.array_equal(first, second)  # it has seen more
    policy.reset()
    assert np.array_equal(policy.act(obs), first)
    batch = np.stack([obs, obs])
    start, later = policy.act(batch), policy.act(batch)
    policy.reset(np.array([True, False]))
    again = policy.act(batch)
    assert np.array_equal(again[0], start[0]) and not np.array_equal(again[1], later[1])
    np.testing.assert_allclose(start[0], first, rtol=1e-5)


def test_a_loaded_policy_is_the_policy_of_the_run(root):
    """Greedy episodes played by hand give what `evaluate` gives."""
    result = rl_lab.evaluate("Pendulum:last", episodes=2, runs_dir=root)
    from rl_lab.run.build import seeds

    policy = rl_lab.load_policy("Pendulum:last", runs_dir=root)
    returns = []
    for seed in seeds(2, api.EVALUATE, 2):
        environment = gym.make("Pendulum-v1", max_episode_steps=40)
        obs, _ = environment.reset(seed=seed)
        policy.reset()
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = environment.step(policy.act(obs))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    loaded = policy.loaded
    assert result.step == loaded.step == 1024 and result.run == loaded.run.id
    saved = final_state(loaded.run)["workflow"]
    assert fingerprint(loaded.workflow.get_state()) == fingerprint(saved)
    np.testing.assert_allclose(returns, result.returns, rtol=1e-4)


def test_registering_makes_a_name(root):
    @rl_lab.register_algorithm("test_api_constant")
    class Constant(rl_lab.Workflow):
        """Always the first action."""

        def act(self, obs, state, *, deterministic):
            return rl_lab.Action(np.zeros(len(obs), dtype=np.int64))

    try:
        outcome = rl_lab.train("CartPole-v1:test_api_constant", runs_dir=root, overrides=SMALL)
        assert outcome.summary["status"] == "finished"
    finally:
        registry._entries["workflow"].pop("test_api_constant")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("register_algorithm", "workflow"),
        ("register_network", "encoder"),
        ("register_memory", "memory"),
        ("register_buffer", "buffer"),
        ("register_wrapper", "wrapper"),
    ],
)
def test_every_register_function_has_its_kind(name, kind):
    try:
        getattr(rl_lab, name)("test_api_thing")(dict)
        assert registry.get(kind, "test_api_thing") is dict
    finally:
        registry._entries[kind].pop("test_api_thing", None)


def test_the_package_names_what_it_has():
    assert set(rl_lab.__all__) <= set(dir(rl_lab))
    for name in rl_lab.__all__:
        assert getattr(rl_lab, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = rl_lab.trian


def test_a_run_without_checkpoints_has_no_policy(tmp_path):
    from rl_lab.records.run_directory import RunDirectory

    run = RunDirectory.create(tmp_path, "empty")
    text = "version: 1\nenvironment: {id: CartPole-v1}\nalgorithm: {name: ppo}\n"
    run.config_file.write_text(text)
    with pytest.raises(UserError, match="no checkpoint yet"):
        rl_lab.load_policy("@last", runs_dir=tmp_path)
