"""A folder of tiny runs, one of them recorded, and a client that has the token."""

import json
import shutil

import pytest

from rl_lab import api
from rl_lab.analysis.report import write_report
from rl_lab.records.run_directory import RunDirectory
from tiny_runs import tiny_run

TOKEN = "a-token-of-the-tests"
HOST = "http://127.0.0.1:7860"
ALERT = {
    "step": 256, "monitor": "kl", "metric": "train/approx_kl", "value": 0.3,
    "message": "KL is 0.3, above 0.1", "tip": "lower algorithm.learning_rate",
}  # fmt: skip


@pytest.fixture(scope="session")
def made_runs(tmp_path_factory):
    """Two seeds of PPO, one of them recorded, filmed and warned of; a DQN with a nasty name."""
    root = tmp_path_factory.mktemp("ui") / "runs"
    words = ["experiment.seed=1", "checkpoint.keep_last=8"]
    first = tiny_run(root, "CartPole-v1:ppo_none", *words).run
    tiny_run(root, "CartPole-v1:ppo_none", "experiment.seed=2")
    tiny_run(root, "CartPole-v1:dqn", "training.total_timesteps=256", "experiment.tags=[draft]")
    for step in (512, 1024):
        api.record(f"{first.id}:{step}", episodes=2, max_steps=30, runs_dir=root)
    (first.path / "alerts.jsonl").write_text(json.dumps(ALERT) + "\n{half")
    write_report(first)
    (first.path / "videos").mkdir()
    (first.path / "videos" / "film.mp4").write_bytes(bytes(range(256)) * 8)
    return root


@pytest.fixture
def root(made_runs, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(made_runs, tmp_path / "runs", symlinks=True)


@pytest.fixture
def named(root):
    """The folders by algorithm and seed: `named("ppo", 1)`."""

    def find(algorithm, seed):
        for row in api.runs(runs_dir=root):
            if (row["algorithm"], row["seed"]) == (algorithm, seed):
                return RunDirectory(root / row["path"])
        raise LookupError(algorithm)

    return find


@pytest.fixture
def client(root):
    """A client that has the token in a header, as a script would."""
    from starlette.testclient import TestClient

    from rl_lab.ui.app import make_app

    app = make_app(root, token=TOKEN, hosts=["127.0.0.1", "localhost"])
    headers = {"Authorization": f"Bearer {TOKEN}"}
    yield TestClient(app, HOST, headers=headers, follow_redirects=False)
    app.state.recorders.stop()
