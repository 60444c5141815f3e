"""Published, loaded and evaluated again: the same returns; nothing private in what is published."""

import getpass
import json
import platform
import re
import shutil

import numpy as np
import pytest
import yaml

import rl_lab
from hub_server import USER, files_of
from rl_lab.cli.main import main
from rl_lab.core.errors import UserError
from rl_lab.hub import bundle as bundling
from rl_lab.hub.bundle import write_bundle
from rl_lab.records.commit import read_tree
from rl_lab.records.redaction import anonymous
from tiny_runs import tiny_run

pytestmark = pytest.mark.needs("huggingface_hub")


def published(hub, run, capsys, *words):
    """What `rl-lab publish` printed."""
    root = str(run.path.parent)
    code = main(["publish", str(run.path), "--episodes", "4", "--runs-dir", root, *words])
    told = capsys.readouterr()
    assert code == 0, told.err
    return told.out


def test_publish_load_evaluate_gives_the_same_returns(hub, trained, capsys):
    told = published(hub, trained, capsys, "--repo", f"{USER}/policy")
    assert f"rl-lab evaluate hf:{USER}/policy --episodes 4" in told
    files = hub.repositories[f"{USER}/policy"].commits[hub.repositories[f"{USER}/policy"].head]
    results = json.loads(files["results.json"])
    mine = rl_lab.evaluate(str(trained.path), episodes=4)
    theirs = rl_lab.evaluate(f"hf:{USER}/policy", episodes=4)
    assert mine.returns == theirs.returns == results["returns"]
    assert mine.lengths == theirs.lengths and mine.step == theirs.step == results["step"]
    assert theirs.run.startswith(f"{USER}--policy@")
    policy, own = rl_lab.load_policy(f"hf:{USER}/policy"), rl_lab.load_policy(str(trained.path))
    obs = np.array([0.1, -0.2, 0.03, 0.4], np.float32)
    assert policy.act(obs) == own.act(obs)


@pytest.mark.parametrize(
    ("spec", "more"),
    [
        ("CartPole-v1:ppo_gru", []),
        ("CartPole-v1:dqn", ["algorithm.learning_starts=64"]),
        ("Pendulum-v1:sac", ["algorithm.learning_starts=64", "training.total_timesteps=128"]),
        ("Pendulum-v1:ppo_none", ["environment.normalize_obs=true"]),
        ("Taxi-v4:q_learning", []),
    ],
)
def test_other_algorithms_come_back_bit_for_bit(hub, tmp_path, capsys, spec, more):
    run = tiny_run(tmp_path / "runs", spec, *more).run
    published(hub, run, capsys, "--repo", f"{USER}/other")
    mine = rl_lab.evaluate(str(run.path), episodes=3)
    assert mine.returns == rl_lab.evaluate(f"hf:{USER}/other", episodes=3).returns


def test_the_command_line_evaluates_and_plays_what_is_published(hub, bundle, capsys, tmp_path):
    commit = hub.put("ann/policy", files_of(bundle.folder))
    assert main(["evaluate", "hf:ann/policy", "--episodes", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["returns"] == bundle.evaluation.returns
    film = tmp_path / "film.gif"
    words = ["--max-steps", "3", "--video", str(film)]
    assert main(["play", f"hf:ann/policy@{commit}", *words]) == 0 and film.exists()


def test_it_is_downloaded_once_and_a_commit_needs_no_network(hub, bundle):
    commit = hub.put("ann/policy", files_of(bundle.folder))
    rl_lab.load_policy("hf:ann/policy")
    downloads = [path for method, path in hub.requests if "/resolve/" in path and method == "GET"]
    assert downloads and not any("README" in path or "curves" in path for path in downloads)
    before = len(hub.requests)
    rl_lab.load_policy("hf:ann/policy")
    assert not any("/resolve/" in path for _, path in hub.requests[before:])
    hub.refuse, before = 503, len(hub.requests)
    rl_lab.load_policy(f"hf:ann/policy@{commit}")
    assert len(hub.requests) == before


def test_an_older_revision_stays_what_it_was(hub, bundle, trained, capsys):
    files = files_of(bundle.folder)
    first = hub.put("ann/policy", files)
    published(hub, trained, capsys, "--repo", "ann/policy", "--checkpoint", "256")
    assert rl_lab.evaluate("hf:ann/policy", episodes=1).step == 256
    names = hub.repositories["ann/policy"].commits[hub.repositories["ann/policy"].head]
    assert len([name for name in names if name.endswith("manifest.json")]) == 1  # not both
    old = rl_lab.evaluate(f"hf:ann/policy@{first}", episodes=4)
    assert old.returns == bundle.evaluation.returns


def test_a_damaged_cache_is_downloaded_again(hub, bundle, tmp_path):
    hub.put("ann/policy", files_of(bundle.folder))
    rl_lab.load_policy("hf:ann/policy")
    (config,) = (tmp_path / "cache" / "hub").glob("*/config.yaml")
    config.write_text(config.read_text().replace("CartPole-v1", "Acrobot-v1"))
    assert rl_lab.evaluate("hf:ann/policy", episodes=4).returns == bundle.evaluation.returns


def test_a_private_one_needs_a_token(hub, trained, capsys, monkeypatch):
    published(hub, trained, capsys, "--repo", f"{USER}/mine", "--private")
    assert hub.repositories[f"{USER}/mine"].private
    assert rl_lab.evaluate(f"hf:{USER}/mine", episodes=1).episodes == 1
    monkeypatch.delenv("HF_TOKEN")
    assert main(["evaluate", f"hf:{USER}/mine"]) == 2
    assert "log in with `hf auth login` or set HF_TOKEN" in capsys.readouterr().err


def test_without_a_name_it_goes_to_ones_own(hub, trained, capsys):
    published(hub, trained, capsys)
    assert list(hub.repositories) == ["ann/ppo-CartPole-v1"]


def test_the_card_is_what_the_hub_reads(bundle):
    from huggingface_hub import ModelCard

    card = ModelCard((bundle.folder / "README.md").read_text())
    (result, interval) = card.data.eval_results
    numbers = bundle.evaluation.summary()
    mean, deviation = numbers["return_mean"], numbers["return_std"]
    assert result.task_type == "reinforcement-learning" and result.dataset_name == "CartPole-v1"
    assert result.metric_type == "mean_reward"
    assert result.metric_value == f"{mean:.2f} +/- {deviation:.2f}"
    # 95 %: mean ± 1.96 · s / √(n − 1) over n = 4 episodes
    half = 1.96 * deviation / 3**0.5
    assert interval.metric_args["low"] == pytest.approx(mean - half, abs=1e-3)
    assert interval.metric_args["high"] == pytest.approx(mean + half, abs=1e-3)
    assert card.data.library_name == "rl-lab" and "ppo" in card.data.tags
    assert "rl-lab evaluate hf:USER/NAME --episodes 4" in card.text
    assert re.search(r"!\[.*\]\(curves\.(png|svg)\)", card.text)


def test_the_policy_alone_is_published(bundle):
    (folder,) = (bundle.folder / "checkpoints").iterdir()
    tree, manifest = read_tree(folder)
    assert set(tree) == {"workflow", "parts"} and tree["parts"] == {}
    assert manifest["policy_only"] and not folder.is_symlink()


def test_it_cannot_be_resumed_and_says_so(bundle, capsys):
    assert main(["train", "--resume", str(bundle.folder), "-q"]) == 2
    assert "cannot be resumed; start a new run with --init-from-run" in capsys.readouterr().err


# ------------------------------------------------------------------------------------ privacy


def test_nothing_private_is_published(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "node", lambda: "gpu-box-7")
    run = tiny_run(tmp_path / "runs", "CartPole-v1:ppo_none", "experiment.name=secret-plan").run
    facts = json.loads(run.provenance_file.read_text())
    facts["command"] = ["/home/ann/bin/rl-lab", "train", "--config", "/home/ann/thesis/run.yaml"]
    facts["environment"] = {"RL_LAB_RUNS": "/data/ann/runs"}
    facts["git"] = {"sha": "ab12", "dirty": True, "diff": "+ password", "untracked": ["cv.pdf"]}
    facts["cpu"] = f"cpu of {platform.node()}"
    run.provenance_file.write_text(json.dumps(facts))
    summary = run.read_summary()
    run.write_summary({**summary, "error": "at /home/ann/x.py", "hostname": platform.node()})
    folder = tmp_path / "out"
    write_bundle(str(run.path), run.path.parent, folder, episodes=2, warn=print)
    private = ["/home", "thesis", "/data", "cv.pdf", "+ password", "secret-plan", str(tmp_path)]
    for name, data in files_of(folder).items():
        for word in [*private, platform.node()]:
            assert word.encode() not in data, (name, word)
    assert json.loads((folder / "provenance.json").read_text())["git"] == {
        "sha": "ab12",
        "dirty": True,
    }
    tree = yaml.safe_load((folder / "config.yaml").read_text())
    assert "logging" not in tree and tree["experiment"]["name"] == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/ann/x.py:3", "<path>:3"),
        ("--config=/srv/a/b.yaml", "--config=<path>"),
        ("~/runs and ~ann/runs", "<path> and <path>"),
        (r"C:\Users\ann\x", "<path>"),
        ("a/b and 3/4 and 2026/11/18", "a/b and 3/4 and 2026/11/18"),
        ("https://a.org/b", "https://a.org/b"),
        ("dm_control/cheetah-run", "dm_control/cheetah-run"),
        ("api_key=hunter2hunter2xx1", "api_key=<redacted>"),
        (3, 3),
        ({"a": ["/x/y", None]}, {"a": ["<path>", None]}),
    ],
)
def test_places_are_replaced(text, shown):
    assert anonymous(text) == shown


def test_names_of_user_and_machine_are_replaced(monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "annabel")
    monkeypatch.setattr(platform, "node", lambda: "gpu-box-7")
    assert anonymous("annabel on gpu-box-7: annabella") == "<user> on <host>: annabella"


def test_a_name_in_the_configuration_is_not_a_person(tmp_path, monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "adam")
    run = tiny_run(tmp_path / "runs", "CartPole-v1:ppo_none", "algorithm.optimizer.name=adam").run
    write_bundle(str(run.path), run.path.parent, tmp_path / "out", episodes=2, warn=print)
    tree = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert tree["algorithm"]["optimizer"]["name"] == "adam"


def test_what_is_interrupted_leaves_no_folder(trained, tmp_path, monkeypatch):
    def interrupted(facts):
        raise KeyboardInterrupt

    monkeypatch.setattr(bundling, "card", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_bundle(
            str(trained.path), trained.path.parent, tmp_path / "a" / "b", episodes=2, warn=print
        )
    assert not list((tmp_path / "a").iterdir())


# ------------------------------------------------------------------------------------- errors


def told(words, capsys):
    """The one line of an error."""
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_run_that_needs_code_is_not_published(trained, tmp_path, capsys):
    run = tmp_path / "runs" / trained.path.name
    run.parent.mkdir()
    shutil.copytree(trained.path, run)
    text = (run / "config.yaml").read_text().replace("kwargs: {}", "kwargs: {file: /tmp/a.xml}")
    (run / "config.yaml").write_text(text)
    line = told(["publish", str(run), "--dry-run", str(tmp_path / "out")], capsys)
    assert "registered names only" in line and not (tmp_path / "out").exists()


def test_mistakes_are_one_line(hub, trained, bundle, capsys, tmp_path):
    run = str(trained.path)
    assert "write USER/NAME" in told(["publish", run, "--repo", "nobody"], capsys)
    assert "not empty" in told(["publish", run, "--dry-run", str(bundle.folder)], capsys)
    words = ["publish", f"{run}:best", "--checkpoint", "last", "--dry-run", str(tmp_path / "x")]
    assert "give one of them" in told(words, capsys)
    hub.put("ann/policy", files_of(bundle.folder))
    assert "no such revision" in told(["evaluate", "hf:ann/policy@v2"], capsys)
    assert "log in" in told(["evaluate", "hf:ann/none"], capsys)
    for wrong in ("hf:", "hf:ann", "hf:../x", "hf:a/b@../c", "hf:a/b/c", "hf:a b/c"):
        assert "write hf:user/name[@revision]" in told(["evaluate", wrong], capsys)
    hub.refuse = 418
    assert "answers 418" in told(["evaluate", "hf:ann/policy"], capsys)


def test_without_a_login_it_says_how(hub, trained, capsys, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    words = ["publish", str(trained.path), "--episodes", "2", "--repo", "ann/policy"]
    assert "hf auth login" in told(words, capsys)
    assert "hf auth login" in told(words[:-2], capsys)


def test_a_hub_that_is_away_is_one_line(monkeypatch, capsys, hub):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "no answer from http://127.0.0.1:9" in told(["evaluate", "hf:ann/policy"], capsys)


def test_a_published_policy_is_never_trusted(hub, bundle):
    hub.put("ann/policy", files_of(bundle.folder))
    with pytest.raises(UserError, match="never trusted"):
        rl_lab.load_policy("hf:ann/policy", trust=True)
