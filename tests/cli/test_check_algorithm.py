"""`rl-lab check algorithm`: says what it does, works for images, and can be stopped."""

import signal

import pytest

from rl_lab.cli import check
from rl_lab.cli.main import main

STOPS = """\
import signal
from rl_lab import Action, Workflow, register_algorithm

@register_algorithm("stops")
class Stops(Workflow):
    def act(self, obs, state, *, deterministic):
        return Action(obs[:, 0].new_zeros(len(obs)).long())

    def update(self, batch, *, phase):
        signal.raise_signal({number})
        return {{}}
"""


@pytest.fixture
def forget():
    yield
    from rl_lab.core import registry

    registry._entries["workflow"].pop("stops", None)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_check_that_is_stopped_is_no_failure(tmp_path, capsys, forget, number, code):
    file = tmp_path / "stops.py"
    file.write_text(STOPS.format(number=int(number)))
    assert main(["check", "algorithm", "stops", "--plugin", str(file)]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "[1/3] stops on CartPole-v1, without a break",
        "interrupted",
    ]


def test_each_run_is_announced(capsys):
    assert main(["check", "algorithm", "random"]) == 0
    printed = capsys.readouterr()
    assert [line.split(",")[1] for line in printed.err.splitlines()] == [
        " without a break",
        " interrupted half way",
        " resumed",
    ]
    assert "bit for bit" in printed.out


@pytest.mark.needs("cma")
def test_what_looks_at_images_is_checked_in_the_middle_of_its_search(monkeypatch, capsys):
    small = {"latent": 2, "channels": [2, 4], "hidden": 4, "sequences": 2, "batch_size": 8}
    more = {f"algorithm.{name}": value for name, value in small.items()}
    more |= {"training.total_timesteps": 256, "evaluation.every_steps": 128}
    monkeypatch.setattr(check, "TINY", {**check.TINY, **more})
    monkeypatch.setattr(check, "STAND_INS", ("Bandit-v0", "PixelTrack-v0"))
    assert main(["check", "algorithm", "world_models"]) == 0
    printed = capsys.readouterr()
    assert "OK: world_models on PixelTrack-v0" in printed.out
    assert "Bandit-v0 does not do: world_models looks at images" in printed.err


def test_a_check_learns_something(recwarn):
    """Batches of REINFORCE are larger than the whole check, unless a small run has smaller ones."""
    assert main(["check", "algorithm", "reinforce"]) == 0
    assert not [each for each in recwarn if "nothing was learned" in str(each.message)]
