"""A run that an agent of a W&B sweep has started: its part of `wandb.config` as overrides.

The agent writes what it wants tried into a file and names it in the environment. So nothing has to
be asked for: the process that trains does not import wandb, and works without a network.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import yaml

from rl_lab.config.values import as_override
from rl_lab.core.errors import UserError
from rl_lab.display.wandb import INSTALL

SWEEP, FILE = "WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH"
TRACK = "logging.wandb.enabled=true"  # the sweep waits for the metric


def agent_words(variables: Mapping[str, str]) -> list[str]:
    """The overrides that the agent asks for, and tracking; none if there is no agent."""
    if not variables.get(SWEEP):
        return []
    if find_spec("wandb") is None:
        raise UserError(f"{SWEEP} is set, but {INSTALL}")
    if not variables.get(FILE):
        raise UserError(
            f"{SWEEP} is set without {FILE}: start this with `wandb agent`, or unset it"
        )
    file = Path(variables[FILE])
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
        found = {key: each["value"] for key, each in tree.items() if key != "wandb_version"}
    except OSError as error:
        raise UserError(f"{FILE}: cannot read {file}: {error.strerror}") from error
    except (yaml.YAMLError, AttributeError, TypeError, KeyError) as error:
        raise UserError(f"{FILE}: {file} is no file of an agent of W&B") from error
    return [*(as_override(key, value) for key, value in found.items()), TRACK]
