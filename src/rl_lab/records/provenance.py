"""Where a run came from: code, packages, machine, command. No secrets, no host name."""

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_lab.core.compiled import compiler_version, cpu_model
from rl_lab.records.redaction import redact, redact_arguments, redact_variables
from rl_lab.records.source import source_hashes

PACKAGES = ("rl-lab", "torch", "numpy", "gymnasium", "hydra-core", "omegaconf", "safetensors")
# Variables that change results or speed.
PREFIXES = ("RL_LAB_", "OMP_", "MKL_", "OPENBLAS_", "TORCH_", "CUDA_", "CUBLAS_", "ATEN_")
DIFF_LIMIT = 1_000_000  # characters
ARITHMETIC = 2  # raised whenever our own code computes the same thing in another order


def provenance(command: list[str], plugins: Sequence[str] = ()) -> dict[str, Any]:
    """Everything needed to run it again, as JSON."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": redact_arguments(command),
        "git": _git(Path.cwd()),
        "source": source_hashes(plugins),
        "packages": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_model(),
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpus": _gpus(),
        "environment": redact_variables(os.environ, sorted(_relevant_variables())),
    }


def numerics_fingerprint(*, compiled: bool = False) -> dict[str, Any]:
    """What decides the last bit of a float; while it is equal, resume is bit-exact."""
    return {
        "arithmetic": ARITHMETIC,
        "compiler": compiler_version() if compiled else None,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "num_threads": torch.get_num_threads(),
        "mkl": torch.backends.mkl.is_available(),
        "mkldnn": torch.backends.mkldnn.is_available(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.cuda.is_available() else None,
        "gpus": _gpus(),
    }


def _git(directory: Path) -> dict[str, Any] | None:
    """Commit and uncommitted changes, or None where there is no repository or no git."""
    sha = _run_git(directory, "rev-parse", "HEAD")
    if sha is None:
        return None
    # Programs that a repository's own settings name must not run just because we take notes.
    diff = _run_git(directory, "diff", "--no-ext-diff", "--no-textconv", "HEAD") or ""
    untracked = _run_git(directory, "ls-files", "--others", "--exclude-standard") or ""
    return {
        "sha": sha.strip(),
        "dirty": bool(diff or untracked),
        "diff": redact(diff[:DIFF_LIMIT]),
        "diff_complete": len(diff) <= DIFF_LIMIT,
        "untracked": untracked.splitlines()[:1000],
    }


def _run_git(directory: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, timeout=10, check=True, text=True,
            errors="replace", stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _gpus() -> list[str]:
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _relevant_variables() -> list[str]:
    return [name for name in os.environ if name.startswith(PREFIXES) or name == "PYTHONHASHSEED"]
