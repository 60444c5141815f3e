"""`rl-lab --help` answers at once: nothing heavy is imported before a command needs it."""

import resource
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "numpy", "gymnasium", "hydra", "omegaconf", "yaml", "rich", "safetensors")


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from rl_lab.cli.main import main; assert main(['--help']) == 0;"
        "import rl_lab; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    loaded = {name.partition(".")[0] for name in done.split()}
    assert not loaded & set(HEAVY)


def test_help_takes_less_than_half_a_second():
    def spent():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime  # not the wall: other tests share the machine

    before = spent()
    done = subprocess.run([sys.executable, "-m", "rl_lab", "--help"], capture_output=True)
    assert done.returncode == 0 and b"Usage: rl-lab" in done.stdout
    assert spent() - before < 0.5


def test_a_wrong_word_on_a_real_command_line():
    done = subprocess.run(
        [sys.executable, "-m", "rl_lab", "trian"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "Did you mean 'train'?" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_script_is_a_door_to_train(monkeypatch, capsys):
    script = Path(__file__).parents[2] / "scripts" / "train.py"
    monkeypatch.setattr(sys, "argv", [str(script), "CartPole-v1:ppo", "--cfg", "job"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(script), run_name="__main__")
    assert stopped.value.code == 0
    assert "id: CartPole-v1" in capsys.readouterr().out
