"""Uploads the folder of a policy: one commit, which replaces what was published there before."""

import re
from pathlib import Path

from rl_lab.core.errors import UserError
from rl_lab.hub.download import client, explained

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
REPLACED = ["checkpoints/*", "curves.*", "replay.*", "metrics.jsonl"]


def check_repository(repo: str) -> None:
    """Refuse a name that is not USER/NAME, before anything is measured."""
    if not _NAME.fullmatch(repo) or ".." in repo:
        raise UserError(f"--repo {repo[:120]}: write USER/NAME")


def own_repository(algorithm: str, environment: str) -> str:
    """`user/algorithm-environment`, where no repository is named."""
    api = client()
    with explained("publish", api.endpoint):
        user = str(api.whoami()["name"])
    return f"{user}/{algorithm}-{environment.replace('/', '-').replace(':', '-')}"


def upload(folder: Path, repo: str, *, private: bool) -> str:
    """Make the repository if there is none, and upload the folder; the address of the commit."""
    api = client()
    with explained(f"hf:{repo}", api.endpoint):
        api.create_repo(repo, private=private, exist_ok=True)
        done = api.upload_folder(
            repo_id=repo,
            folder_path=folder,
            delete_patterns=REPLACED,
            commit_message="Publish a policy of RL Lab",
        )
    return str(done.commit_url)
