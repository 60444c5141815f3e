import pytest

from hub_server import TOKEN, running_hub
from rl_lab.hub.bundle import write_bundle
from tiny_runs import tiny_run


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A small run, in a folder of runs of its own."""
    return tiny_run(tmp_path_factory.mktemp("published") / "runs").run


@pytest.fixture(scope="session")
def bundle(trained, tmp_path_factory):
    """The folder that is published of it."""
    folder = tmp_path_factory.mktemp("bundle") / "policy"
    root, warnings = trained.path.parent, []
    made = write_bundle(f"{trained.path}:last", root, folder, episodes=4, warn=warnings.append)
    assert warnings == []
    return made


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub on loopback, the real client, and an empty cache."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("RL_LAB_CACHE", str(tmp_path / "cache"))
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub
