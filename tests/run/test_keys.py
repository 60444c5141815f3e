"""Keys while a run trains: what each does, that no bit changes, and a real terminal."""

import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from rl_lab.display.sinks import Sink
from rl_lab.run import keys
from rl_lab.run.keys import HELP, Keys
from rl_lab.run.session import resume, train
from tiny_runs import SMALL, SMALL_PPO, run_hash, tiny_config, tiny_run

PPO = "CartPole-v1:ppo_defaults"


class Heard(Sink):
    watched = True

    def __init__(self):
        self.said, self.films = [], []

    def say(self, message):
        self.said.append(message)

    def film(self, step, file):
        self.films.append((step, file))


class Scripted:
    """A keyboard: `{3: "ec"}` are the keys that are pressed in the third hook."""

    def __init__(self, presses):
        self.presses, self.looks, self.waiting = presses, 0, []

    def key(self, seconds=0.0):
        if not self.waiting:
            self.looks += 1
            self.waiting = [*self.presses.pop(self.looks, ""), None]
        return self.waiting.pop(0)


@pytest.fixture
def pressed(tmp_path, monkeypatch):
    """`pressed({3: "e"}, *words)`: a tiny run with these keys, and what was said."""

    def run(presses, *words):
        heard = Heard()

        @keys.contextmanager
        def listening(orchestrator):
            orchestrator.add_callback("session/keys", Keys(Scripted(dict(presses))))
            yield

        monkeypatch.setattr("rl_lab.run.session.listening", listening)
        config = tiny_config(PPO, *words)
        return train(config, root=tmp_path / "pressed", view=lambda *_: [heard]), heard

    return run


def test_an_evaluation_and_a_checkpoint_out_of_turn(pressed):
    outcome, heard = pressed({3: "e", 5: "cc", 9: "x"})
    (line,) = [each for each in heard.said if each.startswith("evaluated at step ")]
    assert re.fullmatch(r"evaluated at step 128: return [\d.]+ ± [\d.]+ \(2 episodes\)", line)
    assert "saved at step 192" in heard.said and "step 192 is saved already" in heard.said
    assert HELP in heard.said  # for a key without a meaning
    rows = [json.loads(row) for row in outcome.run.timing_file.read_text().splitlines()]
    (keyed,) = [row for row in rows if "keyed/return_mean" in row]
    assert keyed["step"] == 128
    assert b"keyed" not in outcome.run.metrics_file.read_bytes()


def test_keys_videos_and_monitors_change_no_bit(pressed, tmp_path):
    """The whole promise: extra evaluations, checkpoints, videos and pauses, against none."""
    words = ("algorithm.learning_rate=0.01",)
    outcome, heard = pressed({2: "e", 4: "v", 6: "cve", 9: "pecp", 20: "?"}, *words)
    assert len(heard.films) == 2 and "going on" in heard.said
    assert run_hash(outcome.run) == run_hash(tiny_run(tmp_path / "plain", PPO, *words).run)


def test_q_saves_and_quits_and_the_run_goes_on_where_it_was(pressed, tmp_path, monkeypatch):
    outcome, _ = pressed({6: "q"})
    assert outcome.exit_code == 130 and outcome.summary["status"] == "interrupted"
    step = outcome.summary["env_steps"]
    assert outcome.summary["saved_step"] == step < 1024
    monkeypatch.undo()
    resumed = resume(outcome.run.id, root=tmp_path / "pressed")
    assert run_hash(resumed.run) == run_hash(tiny_run(tmp_path / "plain", PPO).run)


def test_q_ends_a_pause(pressed):
    outcome, heard = pressed({6: "pq"})
    assert outcome.exit_code == 130 and "going on" not in heard.said


# -- a real terminal ------------------------------------------------------------------------------


class Terminal:
    """`rl-lab train` in a pseudo-terminal: alone, or as a job of a shell."""

    def __init__(self, root: Path, *words: str, in_shell: bool = False) -> None:
        self.master, slave = pty.openpty()
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        command = [sys.executable, "-m", "rl_lab", "train", PPO, *SMALL, *SMALL_PPO, *words]
        command += ["--runs-dir", str(root)]
        shell = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
        self.text = ""
        os.set_blocking(self.master, False)
        self.process = subprocess.Popen(
            shell if in_shell else command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            preexec_fn=self._own_terminal,
            env={**os.environ, "TERM": "xterm", "LANG": "C.UTF-8", "PYTHONIOENCODING": "utf-8"},
        )
        if in_shell:
            self.press(f"{shlex.join(command)}\n")

    def _own_terminal(self) -> None:
        import fcntl

        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def read(self) -> str:
        try:
            while chunk := os.read(self.master, 65536):
                self.text += chunk.decode(errors="replace")
        except (BlockingIOError, OSError):
            pass
        return self.text

    def wait_for(self, words: str, seconds: float = 90.0) -> None:
        end = time.monotonic() + seconds
        while words not in self.read():
            assert time.monotonic() < end, f"no '{words}' in {self.text[-2000:]!r}"
            time.sleep(0.02)

    def press(self, key: str) -> None:
        os.write(self.master, key.encode())

    @property
    def is_raw(self) -> bool:
        return not termios.tcgetattr(self.slave)[3] & termios.ICANON

    def end(self, seconds: float = 90.0) -> int:
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            self.read()
            time.sleep(0.02)
        return self.process.wait(1)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal(tmp_path):
    made = []

    def make(*words, **options):
        made.append(Terminal(tmp_path, *words, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


LONG = (
    "training.total_timesteps=2_000_000",
    "evaluation.every_steps=1_000_000",
    "checkpoint.every_steps=1_000_000",
    "compute.compile=off",
)


def test_in_a_terminal_keys_work_and_it_is_given_back(terminal):
    shown = terminal(*LONG)
    shown.wait_for("e evaluate")
    assert shown.is_raw
    for key, answer in {"e": "evaluated at step", "c": "saved at step", "p": "paused at"}.items():
        shown.press(key)
        shown.wait_for(answer)
    shown.press("p")
    shown.wait_for("going on")
    shown.press("q")
    assert shown.end() == 130
    assert termios.tcgetattr(shown.slave) == shown.before
    assert "interrupted at step" in shown.read()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(terminal):
    shown = terminal(*LONG, in_shell=True)
    shown.wait_for("p pause or go on")
    _wait(lambda: shown.is_raw)
    shown.press("\x1a")
    shown.wait_for("Stopped")
    assert not shown.is_raw
    shown.press("fg\n")
    _wait(lambda: shown.is_raw)
    shown.press("e")
    shown.wait_for("evaluated at step")
    shown.press("q")
    shown.wait_for("interrupted at step")
    _wait(lambda: not shown.is_raw)
    shown.press("exit\n")
    assert shown.end() == 130  # of the last command


@pytest.mark.parametrize("stop", ["ctrl-c", "error"])
def test_other_ends_give_the_terminal_back_too(terminal, stop):
    fault = ("algorithm.learning_rate=1e30",) if stop == "error" else ()
    shown = terminal(*LONG, *fault)
    if stop == "ctrl-c":
        shown.wait_for("e evaluate")
        shown.press("\x03")
    assert shown.end() == (130 if stop == "ctrl-c" else 1)
    assert termios.tcgetattr(shown.slave) == shown.before


def test_without_a_terminal_nothing_listens(tmp_path):
    words = [sys.executable, "-m", "rl_lab", "train", PPO, *SMALL, *SMALL_PPO]
    done = subprocess.run(
        [*words, "training.total_timesteps=128", "--runs-dir", str(tmp_path)],
        input="qqqq",
        capture_output=True,
        text=True,
        check=True,
    )
    assert "keys:" not in done.stdout + done.stderr


def _wait(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
