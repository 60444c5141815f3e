"""`rl_lab.train` takes Python objects: environments, classes, factories, configs, encoders."""

import inspect
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from torch import nn

import rl_lab
from rl_lab.core import registry
from rl_lab.core.errors import UserError
from rl_lab.core.state import fingerprint
from rl_lab.records.run_directory import list_runs
from rl_lab.run.session import load_config
from tiny_runs import SMALL, SMALL_PPO, final_state, run_hash

WORDS = [*SMALL, *SMALL_PPO, "training.total_timesteps=256"]
train = partial(rl_lab.train, overrides=WORDS)
pytestmark = pytest.mark.usefixtures("names_restored")


class Corridor(gym.Env):
    """Go right for ten steps; at module level, so that other processes can import it."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int = 10) -> None:
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = 0, 0
        return self.seen(), {}

    def step(self, action):
        self.place, self.time = self.place + int(action), self.time + 1
        return self.seen(), float(action), self.place >= self.length, self.time >= 30, {}

    def seen(self):
        noise = self.np_random.uniform(-1, 1)
        return np.array([self.place / self.length, noise], np.float32).clip(-1, 1)


class Wide(nn.Module):
    """An encoder that says nothing about its width."""

    def __init__(self, config, space):
        super().__init__()
        self.layer = nn.Linear(space.shape[0], 8)

    def forward(self, obs):
        return torch.tanh(self.layer(obs))


# ---------------------------------------------------------------------- environments


def test_a_gymnasium_environment_is_its_id(tmp_path):
    given = train(gym.make("CartPole-v1"), "ppo_defaults", runs_dir=tmp_path)
    named = train("CartPole-v1:ppo_defaults", runs_dir=tmp_path)
    apart = train("CartPole-v1", "ppo_defaults", runs_dir=tmp_path)
    assert load_config(given.run) == load_config(named.run) == load_config(apart.run)
    assert run_hash(given.run) == run_hash(named.run)
    assert given.needs == ""


def test_arguments_and_time_limit_of_an_instance_are_kept(tmp_path):
    env = gym.make("Pendulum-v1", g=5.0, max_episode_steps=17, render_mode="rgb_array")
    words = [each for each in WORDS if "max_episode_steps" not in each]
    run = rl_lab.train(env, "ppo_defaults", runs_dir=tmp_path, overrides=words)
    config = load_config(run.run).environment
    assert (config.id, config.kwargs, config.max_episode_steps) == ("Pendulum-v1", {"g": 5.0}, 17)
    assert run.summary["test"]["last"]["length_mean"] == 17


def test_arguments_of_an_instance_replace_those_of_a_preset(tmp_path, monkeypatch):
    folder = tmp_path / "configs" / "experiment" / "Pendulum-v1"
    folder.mkdir(parents=True)
    (folder / "ppo.yaml").write_text(
        "version: 1\nenvironment: {id: Pendulum-v1, kwargs: {g: 3.0}}\nalgorithm: {name: ppo}\n"
    )
    monkeypatch.chdir(tmp_path)
    run = train(gym.make("Pendulum-v1"), "ppo", runs_dir=tmp_path / "runs")
    assert load_config(run.run).environment.kwargs == {}


def test_wrappers_of_an_instance_are_in_every_copy(tmp_path):
    env = gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: 3 * reward)
    run = train(env, "ppo_defaults", runs_dir=tmp_path)
    found = run.evaluate(episodes=3)
    assert found.returns == [3 * each for each in found.lengths]
    assert run.needs == "env=<the same CartPole-v1 as before>"


def test_a_class_that_can_be_imported_is_named_by_its_path(tmp_path):
    run = train(Corridor, "ppo_defaults", runs_dir=tmp_path)
    assert load_config(run.run).environment.id == f"{__name__}:Corridor" and run.needs == ""
    again = train(f"{__name__}:Corridor", "ppo_defaults", runs_dir=tmp_path)
    assert run_hash(run.run) == run_hash(again.run)


def test_worker_processes_make_a_class_by_its_path(tmp_path):
    words = {"environment.vectorization": "process", "environment.workers": 1}
    words |= {"evaluation.every_steps": 0, "evaluation.test_episodes": 0}
    run = train(Corridor, "ppo_defaults", runs_dir=tmp_path, **words)
    assert run.summary["status"] == "finished"


def test_a_factory_gives_its_environments_and_a_run_that_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RL_LAB_RUNS", raising=False)
    root = tmp_path / "elsewhere"
    run = train(lambda: Corridor(length=5), "ppo_defaults", runs_dir=root)
    assert load_config(run.run).environment.id == "local/Corridor"
    assert run.needs == "env=Corridor"
    assert "rl_lab.resume(RUN, env=Corridor)" in (run.path / "logs" / "run.log").read_text()
    assert max(run.evaluate(episodes=3).returns) <= 5
    before = run_hash(run.run)
    assert run_hash(run.resume().run) == before
    assert rl_lab.verify(run).identical
    assert rl_lab.fork(run, total_timesteps=512).summary["parent"]["id"] == run.id
    assert rl_lab.load_run(run.id, runs_dir=root).evaluate(episodes=1).episodes == 1
    assert list(tmp_path.iterdir()) == [root]  # no second folder of runs


def test_each_run_keeps_its_own_object_of_a_name(tmp_path):
    short = train(lambda: Corridor(length=3), "ppo_defaults", runs_dir=tmp_path)
    long = train(lambda: Corridor(length=9), "ppo_defaults", runs_dir=tmp_path)
    assert max(short.evaluate(episodes=5, sample=True).returns) == 3
    assert max(long.evaluate(episodes=5, sample=True).returns) == 9


def test_the_constructor_gets_the_configured_arguments(tmp_path):
    class Local(Corridor):
        pass

    run = train(Local, "ppo_defaults", runs_dir=tmp_path, **{"environment.kwargs": {"length": 4}})
    assert max(run.evaluate(episodes=5, sample=True).returns) == 4


class Stranger(gym.Wrapper):
    """Does not record its arguments."""


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (3, "env: must be a text such as .* a Gymnasium environment, an environment class, or a"),
        (dict, "env: dict is not a gymnasium.Env"),
        (lambda: 3, "env: the factory must return a gymnasium.Env, got int"),
        (lambda: 1 / 0, "env: the factory failed: .*ZeroDivisionError"),
        (Corridor(), "env: this Corridor was not made by gymnasium.make.*pass the class Corridor"),
        (Stranger(gym.make("CartPole-v1")), "its wrapper Stranger .*lambda: Stranger"),
        (gym.make_vec("CartPole-v1", 2), "env: got a vector of environments"),
    ],
)
def test_an_environment_that_cannot_be_copied_is_refused(tmp_path, env, said):
    with pytest.raises(UserError, match=said):
        train(env, "ppo_defaults", runs_dir=tmp_path)
    assert not list_runs(tmp_path)


def test_worker_processes_cannot_have_a_lambda(tmp_path):
    words = {"environment.vectorization": "process"}
    with pytest.raises(UserError, match=r"use environment.vectorization=sync"):
        train(lambda: Corridor(), "ppo_defaults", runs_dir=tmp_path, **words)


# ------------------------------------------------------------------------ algorithms


def test_a_config_object_is_the_whole_algorithm_block(tmp_path):
    config = rl_lab.PPOConfig(gamma=0.9, rollout_steps=16, learning_rate=0.001)
    for env in ("CartPole-v1", "CartPole-v1:ppo", gym.make("CartPole-v1")):
        run = rl_lab.train(env, config, runs_dir=tmp_path, overrides=[*SMALL, *WORDS[-1:]])
        found = load_config(run.run).algorithm
        assert found.name == "ppo"
        assert all(getattr(found, key) == value for key, value in vars(config).items())


def test_options_override_a_config_object(tmp_path):
    run = train(
        "CartPole-v1",
        rl_lab.PPOConfig(gamma=0.9),
        runs_dir=tmp_path,
        **{"algorithm.gae_lambda": 0.5},
    )
    found = load_config(run.run).algorithm
    assert (found.gamma, found.gae_lambda) == (0.9, 0.5)


def test_every_config_object_knows_its_algorithm():
    from rl_lab import _CONFIGS, objects

    for name, algorithm in _CONFIGS.items():
        assert objects.read_arguments("E", getattr(rl_lab, name)(), None).spec == f"E:{algorithm}"


def test_a_class_is_an_algorithm(tmp_path):
    class Still(rl_lab.Algorithm):
        """Always the first action."""

        def act(self, obs, state, *, deterministic):
            return rl_lab.Action(np.zeros(len(obs), dtype=np.int64))

    run = rl_lab.train("CartPole-v1", Still, runs_dir=tmp_path, overrides=SMALL)
    assert run.needs == "algorithm=Still" and run.policy.act(np.zeros(4, np.float32)) == 0
    registered = train("CartPole-v1", registry.get("workflow", "ppo"), runs_dir=tmp_path)
    assert load_config(registered.run).algorithm.name == "ppo"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"algorithm": 3}, "algorithm: must be the name of an algorithm, its config such as"),
        ({"algorithm": rl_lab.PPOConfig}, r"algorithm: pass an object, PPOConfig\(\)"),
        ({"algorithm": SystemError()}, "algorithm: must be .* got SystemError"),
        ({"env": "CartPole-v1:ppo", "algorithm": "dqn"}, "'CartPole-v1:ppo' already names 'ppo'"),
        ({"env": "CartPole-v1:dqn", "algorithm": rl_lab.PPOConfig()}, "already names 'dqn'"),
        ({"encoder": 3}, "encoder: must be a torch.nn.Module class, the name of an encoder"),
        ({"encoder": nn.Linear(1, 1)}, "encoder: pass the class Linear, not an instance"),
        ({"encoder": nn.ReLU}, r"encoder: ReLU must take two arguments, ReLU\(config, space\)"),
        ({"runs_dir": 3}, "runs_dir: must be a path, got 3"),
        ({"config_file": 3}, "config_file: must be a path, got 3"),
        ({"overrides": "a=b"}, "overrides: must be a list of texts, got 'a=b'"),
        ({"plugins": "a.py"}, "plugins: must be a list of texts, got 'a.py'"),
        ({"progress": "yes"}, "progress: must be True, False or None, got 'yes'"),
        ({"view": 3}, "view: must be a function"),
        ({"small": 3}, "small: must be True or False, got 3"),
        ({"seed": [1.5]}, "seed: each must be a whole number, got 1.5"),
    ],
)
def test_a_wrong_argument_is_named(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said):
        rl_lab.train(**{"env": "CartPole-v1", **arguments})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["resume", "load_run", "fork", "evaluate", "metrics", "verify"])
def test_a_wrong_reference_is_named(name):
    with pytest.raises(UserError, match=r"reference: must name a run by its id, .*got int"):
        getattr(rl_lab, name)(3)


# -------------------------------------------------------------------------- encoders


def test_a_module_class_is_an_encoder(tmp_path):
    run = train("CartPole-v1", "ppo_defaults", encoder=Wide, runs_dir=tmp_path)
    layers = [each for each in run.policy.loaded.workflow.model.modules() if isinstance(each, Wide)]
    assert layers and run.needs == ""  # other processes import it by its path

    class Local(Wide):
        pass

    run = train("CartPole-v1", "ppo_defaults", encoder=Local, runs_dir=tmp_path)
    assert run.needs == "encoder=Local"
    named = train("CartPole-v1", "ppo_defaults", encoder="mlp_tiny", runs_dir=tmp_path)
    assert load_config(named.run).network.encoder.type == "mlp_tiny"


# ----------------------------------------------------------------- other processes

SCRIPT = """
import gymnasium as gym, numpy as np, sys, torch
import rl_lab

class Drift(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.seen(), {}
    def step(self, action):
        self.time += 1
        return self.seen(), float(action), False, self.time >= 15, {}
    def seen(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

class Small(torch.nn.Module):
    def __init__(self, config, space):
        super().__init__()
        self.layer = torch.nn.Linear(2, 4)
    def forward(self, obs):
        return torch.tanh(self.layer(obs))

if __name__ == "__main__":
    rl_lab.train(
        lambda: Drift(), "ppo_defaults", encoder=Small, runs_dir=sys.argv[1], overrides=sys.argv[2:]
    )
"""


def python(folder, *words, fault="", code=0):
    """A process of its own, started in a folder."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | (
        {"RL_LAB_FAULT": fault} if fault else {}
    )
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def test_another_process_goes_on_with_the_same_classes_exactly(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [*SMALL, *SMALL_PPO]
    python(tmp_path, "script.py", "straight", *words)
    python(tmp_path, "script.py", "runs", *words, fault="hook.after:kill@21", code=-signal.SIGKILL)
    said = python(
        tmp_path,
        "-c",
        "import rl_lab\n"
        "try: rl_lab.resume('@last')\n"
        "except rl_lab.UserError as error: print(error)\n"
        "print(rl_lab.load_run().needs)\n"
        "import script\n"
        "try: rl_lab.resume('@last', env=lambda: script.Drift(), encoder=script.Drift)\n"
        "except rl_lab.UserError as error: print(error)\n"
        "run = rl_lab.resume('@last', env=script.Drift, encoder=script.Small)\n"
        "print(run.evaluate(episodes=1).episodes, rl_lab.evaluate(run.id, episodes=1).episodes)\n",
    ).splitlines()
    assert re.search(
        r"run \w+ was made with Python objects that this process does not have: pass them again, "
        r"rl_lab.resume\('\w+', env=Drift, encoder=Small\)",
        said[0],
    )
    assert said[1] == "env=Drift, encoder=Small"
    assert re.search(r"encoder: run \w+ was made with 'local/Small', not with this one", said[2])
    assert said[3] == "1 1"
    (straight,), (resumed,) = list_runs(tmp_path / "straight"), list_runs(tmp_path / "runs")
    assert resumed.read_summary()["resumes"] == 1
    assert straight.metrics_file.read_bytes() == resumed.metrics_file.read_bytes()
    # Not the whole state: it has the class as __main__:Drift in one, script:Drift in the other.
    learned = [fingerprint(final_state(each)["workflow"]) for each in (straight, resumed)]
    assert learned[0] == learned[1]


# ------------------------------------------------------------------------- a Run


def test_a_run_is_an_object(tmp_path):
    run = train("CartPole-v1:ppo_defaults", runs_dir=tmp_path)
    assert isinstance(run, rl_lab.Run) and isinstance(run, rl_lab.Outcome)
    assert run.path == run.run.path and run.id == run.run.id
    assert run.policy is run.policy  # its memory lasts from call to call
    assert run.evaluate(episodes=2).returns == rl_lab.evaluate(run, episodes=2).returns
    loaded = rl_lab.load_run(run.path)
    assert (loaded.id, loaded.exit_code, loaded.summary) == (run.id, 0, run.summary)


def test_a_run_that_was_stopped_says_so_and_goes_on(tmp_path):
    class Stops(rl_lab.plugin.Sink):
        def write(self, step, row):
            if step >= 128:
                os.kill(os.getpid(), signal.SIGINT)

    view = {"view": lambda config, folder, start: [Stops()]}
    stopped = train("CartPole-v1:ppo_defaults", runs_dir=tmp_path, **view)
    assert stopped.exit_code == rl_lab.load_run(stopped.path).exit_code == 130
    done = stopped.resume()
    assert (done.id, done.exit_code, done.summary["env_steps"]) == (stopped.id, 0, 256)


# ------------------------------------------------------------------- what is public


def test_everything_public_is_documented():
    for module in (rl_lab, rl_lab.plugin):
        for name in module.__all__:
            item = getattr(module, name)
            if inspect.isfunction(item) and item.__module__ == "rl_lab.api":
                text = inspect.getdoc(item)
                for each in inspect.signature(item).parameters:
                    assert re.search(rf"^    \**{each}: ", text, re.MULTILINE), (name, each)
                assert "Returns:" in text, name
            elif inspect.isclass(item) or inspect.isfunction(item):
                assert inspect.getdoc(item), name


def test_an_algorithm_has_two_names():
    assert rl_lab.Algorithm is rl_lab.Workflow is rl_lab.plugin.Algorithm
    assert rl_lab.plugin.register_algorithm is rl_lab.register_algorithm


def test_the_citation_has_the_version():
    citation = yaml.safe_load((Path(__file__).parents[1] / "CITATION.cff").read_text())
    assert citation["version"] == rl_lab.__version__
