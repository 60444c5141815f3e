"""Names of Python objects that only the process which trained a run had: `local/MyEnv`."""

from collections.abc import Mapping
from typing import Any

from rl_lab.core import registry
from rl_lab.core.errors import UserError

ARGUMENTS = {"env": "env", "workflow": "algorithm", "encoder": "encoder"}  # of train, by kind


def named_parts(tree: Mapping[str, Any]) -> dict[str, str]:
    """What a configuration names, by kind: its environment, algorithm and encoder."""
    network = tree.get("network")
    blocks = {
        "env": (tree.get("environment"), "id"),
        "workflow": (tree.get("algorithm"), "name"),
        "encoder": (network.get("encoder") if isinstance(network, Mapping) else None, "type"),
    }
    return {
        kind: str(block.get(key, "") if isinstance(block, Mapping) else block or "")
        for kind, (block, key) in blocks.items()
    }


def passed_again(names: Mapping[str, str]) -> str:
    """The arguments that give local objects again, by kind: `env=MyEnv, encoder=MyEncoder`."""
    words = []
    for kind, name in names.items():
        if name.startswith(registry.LOCAL):
            item = name.removeprefix(registry.LOCAL)
            same = item if item.isidentifier() else f"<the same {item} as before>"
            words.append(f"{ARGUMENTS[kind]}={same}")
    return ", ".join(words)


def require_local(tree: Mapping[str, Any], run: str) -> None:
    """Raise a UserError that says what to pass if a run has objects that are unknown here."""
    local = {
        kind: name for kind, name in named_parts(tree).items() if name.startswith(registry.LOCAL)
    }
    for kind, name in local.items():
        if name not in registry.names(kind):
            raise UserError(
                f"run {run} was made with Python objects that this process does not have: pass "
                f"them again, rl_lab.resume('{run}', {passed_again(local)}) or rl_lab.load_run, or "
                f"register them by name, first rl_lab.register('{kind}', '{name}')(…)"
            )
