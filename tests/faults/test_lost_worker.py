"""A run that lost a worker of its environments is not what its seed makes of it, and says so."""

import multiprocessing
import os
import signal

from rl_lab.analysis.verify import verify
from rl_lab.cli.main import main
from rl_lab.display.sinks import Sink
from rl_lab.run.session import train
from tiny_runs import tiny_config

WORDS = ("environment.vectorization=process", "evaluation.every_steps=0")


class Killer(Sink):
    """Kills a worker at the first row."""

    done = False

    def write(self, step, row):
        if not self.done:
            self.done = True
            child = multiprocessing.active_children()[0]
            os.kill(child.pid, signal.SIGKILL)


def test_the_summary_says_so_and_verify_names_it(tmp_path, capsys):
    config = tiny_config("CartPole-v1:ppo_defaults", *WORDS, "training.total_timesteps=512")
    whole = train(config, root=tmp_path)
    assert whole.summary["resume_exact"] and whole.summary["lost_workers"] == 0
    lossy = train(config, root=tmp_path, view=lambda *_: [Killer()])
    assert lossy.summary["lost_workers"] == 1
    assert not lossy.summary["resume_exact"]
    assert main(["show", lossy.run.id, "--runs-dir", str(tmp_path)]) == 0
    assert (
        "inexact (environment: state saved), resumed 0 times, 1 workers lost"
        in capsys.readouterr().out
    )
    found = verify(lossy.run.id, tmp_path)
    assert not found.identical
    assert any("environment workers of it died or failed 1 times" in why for why in found.reasons)
