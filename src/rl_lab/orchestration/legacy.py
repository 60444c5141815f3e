"""Version 0: the keys of the earlier projects, renamed by a table when such a file is loaded."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from rl_lab.core.errors import ConfigError
from rl_lab.orchestration.documents import COMMAND_LINE, Origins, forget, origin_of

# old path -> new path, applied in this order
RENAMED = {
    "seed": "experiment.seed",
    "device": "experiment.device",
    "env_id": "environment.id",
    "n_envs": "environment.num_envs",
    "num_envs": "environment.num_envs",
    "total_timesteps": "training.total_timesteps",
    "max_timesteps": "training.total_timesteps",
    "env_wrappers": "environment.wrappers",
    "env_kwargs": "environment.kwargs",
    "normalize_obs": "environment.normalize_obs",
    "normalize_reward": "environment.normalize_reward",
    "algo_id": "algorithm.name",
    "policy_lr": "algorithm.learning_rate",
    "learning_rate": "algorithm.learning_rate",
    "n_steps": "algorithm.rollout_steps",
    "n_epochs": "algorithm.epochs",
    "batch_size": "algorithm.batch_size",
    "gamma": "algorithm.gamma",
    "gae_lambda": "algorithm.gae_lambda",
    "clip_range": "algorithm.clip_range",
    "ent_coef": "algorithm.entropy_coefficient",
    "vf_coef": "algorithm.value_coefficient",
    "max_grad_norm": "algorithm.max_grad_norm",
    "target_kl": "algorithm.target_kl",
    "workflow": "algorithm",
    "controllers": "components",
    "environment.name": "environment.id",
    "environment.env_id": "environment.id",
    "environment.n_envs": "environment.num_envs",
    "environment.env_wrappers": "environment.wrappers",
    "environment.env_kwargs": "environment.kwargs",
    "environment.max_steps": "environment.max_episode_steps",
    "algorithm.n_envs": "environment.num_envs",
    "algorithm.num_envs": "environment.num_envs",
    "algorithm.lr": "algorithm.learning_rate",
    "algorithm.policy_lr": "algorithm.learning_rate",
    "algorithm.clip_ratio": "algorithm.clip_range",
    "algorithm.clip_coef": "algorithm.clip_range",
    "algorithm.clip_epsilon": "algorithm.clip_range",
    "algorithm.value_coef": "algorithm.value_coefficient",
    "algorithm.vf_coef": "algorithm.value_coefficient",
    "algorithm.entropy_coef": "algorithm.entropy_coefficient",
    "algorithm.ent_coef": "algorithm.entropy_coefficient",
    "algorithm.lam": "algorithm.gae_lambda",
    "algorithm.n_epochs": "algorithm.epochs",
    "algorithm.num_epochs": "algorithm.epochs",
    "algorithm.update_epochs": "algorithm.epochs",
    "algorithm.n_steps": "algorithm.rollout_steps",
    "algorithm.num_steps": "algorithm.rollout_steps",
    "algorithm.num_minibatches": "algorithm.minibatches",
    "algorithm.minibatch_size": "algorithm.batch_size",
    "algorithm.normalize_advantage": "algorithm.normalize_advantages",
    "algorithm.tau": "algorithm.target_rate",
    "algorithm.utd": "algorithm.replay_ratio",
    "algorithm.utd_ratio": "algorithm.replay_ratio",
    "algorithm.value_n_particles": "algorithm.value_particles",
    "algorithm.kernel_n_particles": "algorithm.kernel_particles",
    "training.max_timesteps": "training.total_timesteps",
    "training.eval_frequency": "evaluation.every_steps",
    "training.eval_freq": "evaluation.every_steps",
    "training.num_eval_episodes": "evaluation.episodes",
    "training.eval_episodes": "evaluation.episodes",
    "training.checkpoint_frequency": "checkpoint.every_steps",
    "training.checkpoint_freq": "checkpoint.every_steps",
}
ROLLOUT_BUFFERS = ("trajectory", "rollout", "on_policy")
DEFAULT_NUM_ENVS = 8
SHOWN = 4  # renames named in the note


def new_name(path: str) -> str | None:
    """What an old key is called today: a word if it stayed in its block, else the whole path."""
    renamed = RENAMED.get(path)
    if renamed is None:
        return None
    block, _, key = renamed.rpartition(".")
    return key if block == path.rpartition(".")[0] else renamed


def upgrade(
    tree: Mapping[str, Any], origins: Origins
) -> tuple[dict[str, Any], Origins, str | None]:
    """A version 0 tree as version 1, its origins moved along, and one line that says what changed.

    Raises ConfigError when an old key and its new name are both there.
    """
    move = _Move(deepcopy(dict(tree)), dict(origins))
    for old, new in RENAMED.items():
        move.rename(old, new)
    for special in (_device, _normalisation, _wrapper, _buffer, _network):
        special(move)
    if move.problems:
        raise ConfigError(move.problems)
    shown = [f"{old} → {new}" for old, new in move.done[:SHOWN]]
    if len(move.done) > SHOWN:
        shown.append(f"and {len(move.done) - SHOWN} more")
    note = f"version 0, read as version 1 ({', '.join(shown)})" if shown else None
    return {"version": 1, **move.tree}, move.origins, note


class _Move:
    """A tree and its origins, changed together."""

    def __init__(self, tree: dict[str, Any], origins: Origins) -> None:
        self.tree = tree
        self.origins = origins
        self.done: list[tuple[str, str]] = []
        self.problems: list[str] = []

    def get(self, path: str) -> Any:
        """The value at a path, or None."""
        here: Any = self.tree
        for key in path.split("."):
            here = here.get(key) if isinstance(here, dict) else None
        return here

    def has(self, path: str) -> bool:
        """True when the path was written, whatever its value."""
        parent, _, key = path.rpartition(".")
        block = self.get(parent) if parent else self.tree
        return isinstance(block, dict) and key in block

    def drop(self, path: str) -> Any:
        """Remove a path and give its value."""
        parent, _, key = path.rpartition(".")
        block = self.get(parent) if parent else self.tree
        value = block.pop(key)
        if parent and not block:
            self.drop(parent)
        return value

    def put(self, path: str, value: Any) -> None:
        """Write a value, making the blocks around it."""
        *parents, key = path.split(".")
        here = self.tree
        for parent in parents:
            here = here.setdefault(parent, {})
        here[key] = value

    def rename(
        self, old: str, new: str, change: Callable[[Any], Any] = lambda value: value
    ) -> None:
        """Move a value or a whole block, unless the new name is taken; the command line wins."""
        if not self.has(old):
            return
        if isinstance(self.get(old), dict) and isinstance(self.get(new), dict):
            for key in list(self.get(old)):
                self.rename(f"{old}.{key}", f"{new}.{key}")
            return
        if self.has(new):
            typed = [origin_of(path, self.origins) == COMMAND_LINE for path in (old, new)]
            if typed[0] == typed[1]:
                where = origin_of(old, self.origins)
                self.problems.append(f"{old}: the same option as {new}: keep one — {where}")
                return
            if typed[1]:  # the newer spelling was typed over the older one of the file
                self.drop(old)
                forget(old, self.origins)
                return
        value = change(self.drop(old))
        for path in [each for each in self.origins if each == old or each.startswith(f"{old}.")]:
            self.origins[new + path.removeprefix(old)] = self.origins.pop(path)
        self.put(new, value)
        self.done.append((old, new))


def _device(move: _Move) -> None:
    """`cuda` in those files meant the author's machine; `auto` takes a GPU where there is one."""
    path = "experiment.device"
    if move.get(path) == "cuda" and origin_of(path, move.origins) != COMMAND_LINE:
        move.put(path, "auto")
        move.done.insert(0, (f"{path} cuda", "auto"))  # never hidden behind "and 9 more"


def _normalisation(move: _Move) -> None:
    if move.get("environment.normalize_obs") == "rolling":
        move.put("environment.normalize_obs", "running")


def _wrapper(move: _Move) -> None:
    """`wrapper: gym` chose a base class; there is only one now."""
    if move.get("environment.wrapper") in ("gym", "gymnasium", None) and move.has(
        "environment.wrapper"
    ):
        move.drop("environment.wrapper")
        forget("environment.wrapper", move.origins)
        move.done.append(("environment.wrapper", "dropped"))


def _buffer(move: _Move) -> None:
    """One `buffer` of a number of rows: a rollout's length, or the replay buffer."""
    block = move.get("buffer")
    if not isinstance(block, dict):
        return
    if block.get("type", "trajectory") in ROLLOUT_BUFFERS:
        block.pop("type", None)
        forget("buffer.type", move.origins)
        num_envs = move.get("environment.num_envs") or DEFAULT_NUM_ENVS
        move.rename(
            "buffer.size",
            "algorithm.rollout_steps",
            lambda size: _shared(size, num_envs),
        )
        if move.has("buffer") and not block:
            move.drop("buffer")
        return
    move.rename("buffer.size", "buffer.capacity")
    move.rename("buffer", "buffers.replay")
    if move.get("buffers.replay.type") == "replay":
        move.put("buffers.replay.type", "uniform")


def _shared(size: Any, num_envs: Any) -> Any:
    """Rows per environment; what is not a number is left to the validator."""
    try:
        return max(int(float(size)) // int(num_envs), 1)
    except (TypeError, ValueError):
        return size


def _network(move: _Move) -> None:
    """Two whole networks of before are a torso each (`shared_torso: false`) with plain heads."""
    heads = [move.get(f"network.{head}") for head in ("actor", "critic")]
    typed = [head for head in heads if isinstance(head, dict) and "type" in head]
    if not typed:
        return
    if all(head == typed[0] for head in heads if head is not None) and not move.has(
        "network.encoder"
    ):
        for name in ("actor", "critic"):
            if move.has(f"network.{name}"):
                move.done.append((f"network.{name}", "network.encoder"))
                move.drop(f"network.{name}")
                _carry(move.origins, f"network.{name}", "network.encoder")
        move.put("network.encoder", typed[0])
        return
    # Different widths: the encoder passes the observation on, and each head has its own layers.
    for name in ("actor", "critic"):
        if move.has(f"network.{name}.type"):
            move.drop(f"network.{name}.type")
            forget(f"network.{name}.type", move.origins)
    move.done.append(("network.actor.type", "network.encoder.type"))
    if not move.has("network.encoder"):
        move.put("network.encoder", {"type": "mlp", "hidden_dims": []})


def _carry(origins: Origins, old: str, new: str) -> None:
    for path in [each for each in origins if each == old or each.startswith(f"{old}.")]:
        origins.setdefault(new + path.removeprefix(old), origins[path])
        del origins[path]
