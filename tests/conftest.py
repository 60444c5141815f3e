import pytest
import torch

from rl_lab.orchestration import catalog  # noqa: F401  (declares the built-ins)
from tiny_runs import tiny_orchestrator

torch.set_num_threads(1)


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
