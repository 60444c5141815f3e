"""Which runs this user has made: a keyed mark of their config.yaml, in the run's own folder.

The key is a secret of one user on one machine, made when it is first needed. The mark is an
HMAC-SHA256 of the bytes of config.yaml: a copied or renamed folder keeps it, another config.yaml
does not fit it, and without the key none can be written. A list of runs beside the key would lose
every folder that is moved, and grow for ever.
"""

import hashlib
import hmac
import json
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from rl_lab.records.commit import write_atomically
from rl_lab.records.config_file import read_bounded
from rl_lab.records.run_directory import RunDirectory

HOME_VARIABLE = "RL_LAB_HOME"
KEY_BYTES = 32
_PURPOSE = b"rl-lab run 1\n"  # what a mark says: the key may sign other things one day


def home() -> Path:
    """The user's own folder: RL_LAB_HOME, or `rl-lab` in the configuration folder."""
    if own := os.environ.get(HOME_VARIABLE):
        return Path(own).expanduser()
    if (base := os.environ.get("XDG_CONFIG_HOME", "")).startswith("/"):
        return Path(base) / "rl-lab"
    try:
        return Path.home() / ".config" / "rl-lab"
    except RuntimeError as error:
        raise OSError(None, f"there is no home folder; set {HOME_VARIABLE}") from error


def write_mark(run: RunDirectory, config: bytes) -> str | None:
    """Mark a run with this config.yaml as one's own; why that was impossible, or None."""
    try:
        key = _made_key()
    except OSError as error:
        return error.strerror or str(error)
    mark = {"key": _name(key), "mark": _mac(key, config)}
    write_atomically(run.mark_file, f"{json.dumps(mark)}\n".encode())
    return None


def doubt(run: RunDirectory) -> str | None:
    """Why a run is not known to be this user's, as it would follow `it`; None if it is."""
    try:
        found = json.loads(read_bounded(run.mark_file))
        name, mac = str(found["key"]), str(found["mark"])
        config = read_bounded(run.config_file)
    except FileNotFoundError:
        return "has no mark of yours"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "has a damaged mark"
    try:
        key = _read_key()
    except OSError as error:
        return f"has a mark, and your key cannot be read ({error.strerror or error})"
    if name != _name(key):
        return "has the mark of another user or machine"
    if not hmac.compare_digest(mac.encode(), _mac(key, config).encode()):
        return "was changed after it was made (its mark does not fit config.yaml)"
    return None


def _mac(key: bytes, config: bytes) -> str:
    return hmac.digest(key, _PURPOSE + config, "sha256").hex()


def _name(key: bytes) -> str:
    """Tells two keys apart, and nothing about them."""
    return hashlib.sha256(b"name of " + key).hexdigest()[:16]


def _key_file() -> Path:
    return home() / "key"


def _read_key() -> bytes:
    descriptor = os.open(_key_file(), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid != os.geteuid():
            raise OSError(None, f"{_key_file()} must be a file that only you can read: chmod 600")
        key = file.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise OSError(None, f"{_key_file()} is damaged: remove it, and a new one is made")
    return key


def _made_key() -> bytes:
    """The key; made now if there is none. Of processes that make one at a time, one is first."""
    with suppress(FileNotFoundError):
        return _read_key()
    file = _key_file()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f".tmp-key-{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(secrets.token_bytes(KEY_BYTES))
            out.flush()
            os.fsync(descriptor)
        try:
            file.hardlink_to(draft)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return _read_key()
