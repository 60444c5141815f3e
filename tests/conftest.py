import os
import signal
from importlib.util import find_spec
from types import SimpleNamespace

import gymnasium as gym
import pytest
import torch

from rl_lab.config import catalog  # noqa: F401  (declares the built-ins)
from rl_lab.core import registry
from rl_lab.core.compiled import Compiled, _trace
from tiny_runs import tiny_orchestrator

torch.set_num_threads(1)
# A suite that was started in the background may have been told to ignore Ctrl-C; tests are not.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """`@pytest.mark.needs("mujoco")`: skipped where that module is not installed."""
    for module in [name for mark in item.iter_markers("needs") for name in mark.args]:
        if find_spec(module) is None:
            pytest.skip(f"needs {module}")


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory):
    """The key that marks runs as one's own: not that of whoever runs the tests."""
    os.environ["RL_LAB_HOME"] = str(tmp_path_factory.mktemp("home"))


@pytest.fixture
def names_restored(monkeypatch):
    """Names that a test gives to objects are gone after it."""
    known = {kind: dict(entries) for kind, entries in registry._entries.items()}
    monkeypatch.setattr(registry, "_entries", known)
    before = set(gym.registry)
    yield
    for id in set(gym.registry) - before:
        del gym.registry[id]


@pytest.fixture
def tiny(tmp_path):
    """`tiny(spec, *overrides)`: an orchestrator, built and not started; closed at the end."""
    made = []

    def make(*words):
        made.append(tiny_orchestrator(tmp_path, *words))
        return made[-1]

    yield make
    for orchestrator in made:
        orchestrator.close()


@pytest.fixture
def interpreted(monkeypatch):
    """Functions are traced, which refuses whatever is read from outside; the graph is then run."""
    names = []

    def make(self, leaves, shape):
        copies = [leaf.detach().clone() for leaf in leaves]
        graph, out_shape = _trace(self.function, copies, shape, self.name)
        names.append(self.name)
        return SimpleNamespace(run=torch.no_grad()(lambda inputs: graph(*inputs))), out_shape

    monkeypatch.setattr(Compiled, "_make", make)
    return names
