"""Published policies by name, `hf:user/name@revision`: downloaded once, verified at each use."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rl_lab.core.compiled import cache_folder
from rl_lab.core.errors import UserError
from rl_lab.hub.contents import (
    LIST,
    MAX_LIST,
    check_file,
    check_no_code,
    read_list,
    verify,
)
from rl_lab.records.commit import make_directory
from rl_lab.records.files import read_bounded

PREFIX = "hf:"
TIMEOUT = 30.0  # seconds
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_NAME = re.compile(rf"hf:(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[A-Za-z0-9][\w./-]{{0,99}}))?")
_COMMIT = re.compile("[0-9a-f]{40}")


def is_published(reference: object) -> bool:
    """Whether a reference names a policy on the hub."""
    return isinstance(reference, str) and reference.startswith(PREFIX)


def fetch(reference: str) -> Path:
    """The folder of a published policy, every file of it verified; downloaded if it is new.

    It is a run folder of another user: what opens it lets its configuration use registered names
    only, as for every run without the mark of this user.
    """
    match = _NAME.fullmatch(reference)
    if match is None or ".." in reference:
        raise UserError(
            f"'{reference[:120]}' is no published policy: write hf:user/name[@revision]"
        )
    repo, revision = match["repo"], match["revision"]
    if revision and _COMMIT.fullmatch(revision) and _is_intact(_folder(repo, revision), reference):
        return _folder(repo, revision)
    api = client()
    with explained(reference, api.endpoint):
        info = api.model_info(repo, revision=revision, files_metadata=True, timeout=TIMEOUT)
    commit = str(info.sha)
    if not _COMMIT.fullmatch(commit):
        raise UserError(f"{reference}: {api.endpoint} names no commit")
    folder = _folder(repo, commit)
    if not _is_intact(folder, reference):
        sizes = {str(each.rfilename): each.size for each in info.siblings or []}
        _download(api, repo, commit, sizes, folder, reference)
    return folder


def client() -> Any:
    """The hub's own client, at HF_ENDPOINT if that is set."""
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise UserError("this needs huggingface_hub: pip install 'rl-lab[hub]'") from error
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="rl-lab")


@contextmanager
def explained(what: str, endpoint: str) -> Iterator[None]:
    """One line for what the hub refuses, or for a hub that cannot be reached."""
    from huggingface_hub import errors

    try:
        yield
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{what}: there is no such revision") from error
    except errors.GatedRepoError as error:
        raise UserError(f"{what}: its owner has to let you in first: {endpoint}") from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"{what}: not on {endpoint}, or private: log in with `hf auth login` or set HF_TOKEN"
        ) from error
    except errors.HfHubHTTPError as error:
        code = error.response.status_code
        hint = ": log in with `hf auth login` or set HF_TOKEN" if code in (401, 403) else ""
        why = " ".join((error.server_message or "").split())[:200]
        raise UserError(f"{what}: {endpoint} answers {code} {why}{hint}") from error
    except (errors.HTTPError, errors.OfflineModeIsEnabled, OSError, ValueError) as error:
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{what}: no answer from {endpoint}: {why}") from error


def _folder(repo: str, commit: str) -> Path:
    """Where a policy is kept: its name is what results are named after."""
    return cache_folder() / "hub" / f"{repo.replace('/', '--')}@{commit}"


def _is_intact(folder: Path, reference: str) -> bool:
    """Whether a folder was downloaded whole, and is still what it was; if not, it is removed."""
    if not folder.is_dir():
        return False
    try:
        verify(folder, reference)
    except (UserError, OSError):
        shutil.rmtree(folder, ignore_errors=True)
        return False
    return True


def _download(
    api: Any, repo: str, commit: str, sizes: dict[str, int | None], folder: Path, reference: str
) -> None:
    """Download what the list names into a draft, verify it, and give it its name."""
    check_no_code(sizes, reference)
    if LIST not in sizes:
        raise UserError(f"{reference} was not published by rl-lab: it has no {LIST}")
    if not 0 < (sizes[LIST] or 0) <= MAX_LIST:
        raise UserError(
            f"{reference}: {LIST} has {sizes[LIST]} bytes, at most {MAX_LIST:,} are read"
        )
    make_directory(folder.parent)
    with TemporaryDirectory(prefix=".tmp-", dir=folder.parent) as draft:
        place = Path(draft) / folder.name

        def get(name: str) -> Path:
            with explained(reference, api.endpoint):
                found = api.hf_hub_download(repo, name, revision=commit, local_dir=place)
            return Path(found)

        entries = read_list(read_bounded(get(LIST), MAX_LIST), reference)
        for name, entry in entries.items():
            if sizes.get(name) != entry.size:  # before a byte of it is downloaded
                raise UserError(
                    f"{reference}: {name} has {sizes.get(name, 'no')} bytes, {LIST} says "
                    f"{entry.size:,}"
                )
        for name, entry in entries.items():
            check_file(get(name), entry, f"{reference}: {name}")
        shutil.rmtree(place / ".cache", ignore_errors=True)  # notes of the client
        try:
            place.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first
                raise
