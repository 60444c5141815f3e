"""The W&B dashboard, against recorded answers of the server: nothing goes online here."""

import json
from types import SimpleNamespace

import pytest

from rl_lab.cli.main import main

pytestmark = pytest.mark.needs("wandb", "wandb_workspaces")
WORDS = ["wandb-dashboard", "--entity", "ann", "--project", "walks"]
VIEW = {"id": "Vmlldzo3", "displayName": "RL Lab", "spec": json.dumps({"version": 5, "ref": {}})}


class Server:
    """Answers GraphQL as W&B did, and keeps what was asked. `views` by their internal name."""

    def __init__(self, monkeypatch):
        from wandb_workspaces.workspaces import interface, internal

        self.asked, self.views, self.project = [], {}, True
        monkeypatch.setattr(internal.wandb, "Api", lambda: SimpleNamespace(client=None))
        monkeypatch.setattr(internal, "execute_graphql", self.execute)
        monkeypatch.setattr(internal, "validate_spec_version", lambda spec, **words: None)
        monkeypatch.setattr(interface, "get_app_url", lambda api: "https://wandb.ai", raising=False)
        monkeypatch.setattr(interface.wandb, "termlog", lambda line: None)
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        monkeypatch.delenv("WANDB_MODE", raising=False)

    def execute(self, api, query, variables):
        kind = "upsert" if "UpsertView2" in query else "view"
        self.asked.append((kind, variables))
        if kind == "view":
            if not self.project:
                return {"project": None}
            found = self.views.get(variables["viewName"])
            edges = [{"node": found}] if found else []
            return {"project": {"allViews": {"edges": edges}}}
        id = variables.get("id") or f"Vmlldzo{len(self.views)}"
        self.views[variables["name"]] = {
            "id": id,
            "displayName": variables["displayName"],
            "spec": variables["spec"],
        }
        view = {"id": id, "name": variables["name"]}
        return {"upsertView": {"view": view, "inserted": "id" not in variables}}


@pytest.fixture
def server(monkeypatch):
    return Server(monkeypatch)


def panels(spec):
    """Title -> configuration of every panel."""
    sections = spec["section"]["panelBankConfig"]["sections"]
    return {
        panel["config"].get("chartTitle"): panel["config"]
        for section in sections
        for panel in section["panels"]
    }


def test_a_dry_run_prints_it_and_asks_nobody(server, capsys):
    assert main([*WORDS, "--dry-run"]) == 0 and server.asked == []
    tree = json.loads(capsys.readouterr().out)
    assert (tree["entity"], tree["project"]) == ("ann", "walks")
    found = panels(tree["spec"])
    assert found["eval/return_mean"]["metrics"] == ["eval/return_mean"]
    assert found["eval/return_mean"]["xAxis"] == "env_steps"
    assert "time/sps (steps/s)" in found and "train/approx_kl" in found


def test_it_is_made_once_and_left_as_it_is(server, capsys):
    assert main(WORDS) == 0
    assert "created: https://" in capsys.readouterr().out
    assert [kind for kind, _ in server.asked] == ["view", "upsert"]
    (name,) = server.views
    assert name == "nw-rllabdashboard-v"
    before = dict(server.views)
    assert main(WORDS) == 0
    assert "left as it is" in capsys.readouterr().out
    assert server.views == before and server.asked[-1][0] == "view"


def test_overwriting_replaces_the_same_view(server, capsys):
    assert main(WORDS) == 0
    (first,) = server.views.values()
    assert main([*WORDS, "--overwrite", "--select-latest", "--json"]) == 0
    assert len(server.views) == 1
    kind, variables = server.asked[-1]
    assert kind == "upsert" and variables["id"] == first["id"]
    out = capsys.readouterr().out
    assert json.loads(out[out.index("{") :])["outcome"] == "overwritten"


def test_the_latest_run_alone(server, capsys):
    for words, most in ([], 10), (["--select-latest"], 1):
        assert main([*WORDS, "--dry-run", *words]) == 0
        text = capsys.readouterr().out
        assert f'"maxRuns": {most}' in text or f'"limit": {most}' in text, text[-3000:]


def test_mistakes_are_one_line(server, capsys, monkeypatch, tmp_path):
    server.project = False
    assert main(WORDS) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "`ann/walks` not found" in line
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    assert main(WORDS) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "wandb login" in line and "--dry-run" in line
    assert main(WORDS[:3]) == 2
