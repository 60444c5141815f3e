"""Version 0: the keys of the earlier projects, renamed by a table when such a file is loaded."""

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from rl_lab.config.documents import COMMAND_LINE, Origins, forget, origin_of
from rl_lab.core.errors import ConfigError

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
    "policy_targets": "algorithm.policy_targets",
    "returns_type": "algorithm.returns_type",
    "clip_range_vf": "algorithm.value_clip",
    "optimizer": "algorithm.optimizer.name",
    "hidden_dims": "network.encoder.hidden_dims",
    "activation": "network.encoder.activation",
    "obs_type": "environment.kwargs.obs_type",
    "max_episode_steps": "environment.max_episode_steps",
    "eval_episodes": "evaluation.episodes",
    "eval_deterministic": "evaluation.deterministic",
    "project_id": "logging.wandb.project",
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
DEFAULT_ROLLOUT = 128
ENCODERS = {"mlp": "mlp", "cnn": "nature"}  # by how a `policy` begins: mlp, MlpPolicy, cnn_...
IN_POLICY = {"hidden_dims": "hidden_dims", "net_arch": "hidden_dims", "activation": "activation"}
_SCHEDULE = re.compile(r"(\w+)_schedule(?:_start_value|_end_value|_start|_end)?")
DROPPED = "dropped"
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
    flat = (_images, _vectors, _policy, _optimizer, _schedules, _evaluation, _spaces)
    for special in (*flat, _device, _normalization, _wrapper, _buffer, _network):
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

    def put(self, path: str, value: object) -> None:
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

    def take(self, path: str, becomes: str) -> Any:
        """Remove an old key that is spread over others or means nothing today; its value."""
        origin = origin_of(path, self.origins)
        forget(path, self.origins)
        if becomes != DROPPED:
            self.origins[becomes] = origin
        self.done.append((path, becomes))
        return self.drop(path)

    def refuse(self, path: str, message: str) -> None:
        """One problem of an old key."""
        self.problems.append(f"{path}: {message} — {origin_of(path, self.origins)}")

    @property
    def num_envs(self) -> int:
        """Environments, as far as the file says."""
        found = _whole(self.get("environment.num_envs"))
        return DEFAULT_NUM_ENVS if found is None else found

    @property
    def rollout_rows(self) -> int:
        """Environment steps of one epoch of that solver: a rollout of all environments."""
        steps = _whole(self.get("algorithm.rollout_steps"))
        return (DEFAULT_ROLLOUT if steps is None else steps) * self.num_envs


def _images(move: _Move) -> None:
    """`grayscale_obs`, `resize_obs` and `frame_stack` are wrappers, in this order."""
    wrappers: list[dict[str, Any]] = []
    if move.has("grayscale_obs") and move.take("grayscale_obs", "environment.wrappers"):
        wrappers.append({"id": "Grayscale"})
    if move.has("resize_obs") and (size := move.take("resize_obs", "environment.wrappers")):
        wrappers.append({"id": "Resize", "size": 84 if size is True else size})
    if move.has("frame_stack"):
        frames = move.take("frame_stack", "environment.wrappers")
        if frames and _whole(frames) != 1:
            wrappers.append({"id": "FrameStack", "frames": frames})
    if wrappers:
        before = move.get("environment.wrappers") or []
        move.put("environment.wrappers", [*before, *wrappers])
    if move.get("environment.kwargs.obs_type") == "objects":
        move.refuse(
            "environment.kwargs.obs_type", "'objects' (OCAtari) is not there yet: rgb or ram"
        )


def _vectors(move: _Move) -> None:
    """`subproc`: worker processes, or a loop in this one."""
    if move.has("subproc"):
        subproc = move.take("subproc", "environment.vectorization")
        if subproc is not None:
            move.put("environment.vectorization", "process" if subproc else "sync")


def _policy(move: _Move) -> None:
    """`policy: mlp` with its `policy_kwargs` is an encoder with its options."""
    if move.has("policy"):
        name = str(move.get("policy"))
        found = [each for start, each in ENCODERS.items() if name.lower().startswith(start)]
        if not found:
            move.refuse("policy", f"'{name}' is not there: mlp or cnn, or network.encoder.type")
            return
        move.take("policy", "network.encoder.type")
        move.put("network.encoder.type", found[0])
    if isinstance(move.get("policy_kwargs"), dict):
        for key in list(move.get("policy_kwargs")):
            path = f"policy_kwargs.{key}"
            if key not in IN_POLICY:
                move.refuse(
                    path, "not there yet: hidden_dims, activation, or network.* (options.md)"
                )
                return
            move.rename(path, f"network.encoder.{IN_POLICY[key]}")
    if move.has("policy_kwargs") and not move.get("policy_kwargs"):
        move.take("policy_kwargs", DROPPED)


def _optimizer(move: _Move) -> None:
    """`AdamW` is adamw; advantages were normalized per minibatch, or not."""
    if isinstance(name := move.get("algorithm.optimizer.name"), str):
        move.put("algorithm.optimizer.name", name.lower())
    path = "normalize_advantages"
    if move.has(path):
        value = move.take(path, f"algorithm.{path}")
        kept = {True: "batch", False: "off"}.get(value, value) if isinstance(value, bool) else value
        move.put(f"algorithm.{path}", kept)


def _schedules(move: _Move) -> None:
    """`policy_lr_schedule: linear` and its four numbers are one value: a schedule."""
    names = [match[1] for key in list(move.tree) if (match := _SCHEDULE.fullmatch(key))]
    for name in dict.fromkeys(names):
        given = {
            end: move.take(path, f"{RENAMED.get(name, name)}")
            for end in ("", "_start_value", "_end_value", "_start", "_end")
            if move.has(path := f"{name}_schedule{end}")
        }
        target = RENAMED.get(name)
        if target is None:
            move.refuse(f"{name}_schedule", f"there is no '{name}' that could have a schedule")
        elif given.get("") not in (None, False, "constant"):
            base = str(move.get(target)).removeprefix("lin_")
            vector_steps = {
                end: _points(given.get(end), move.num_envs) for end in ("_start", "_end")
            }
            schedule = {"start": given.get("_start_value"), "end": given.get("_end_value")}
            schedule |= {"from": vector_steps["_start"], "to": vector_steps["_end"]}
            schedule["start"] = base if schedule["start"] is None else schedule["start"]
            known = {key: value for key, value in schedule.items() if value is not None}
            known["shape"] = given[""]
            move.put(target, known)
            origin = origin_of(target, move.origins)
            move.origins |= {f"{target}.{key}": origin for key in known}


def _points(value: object, num_envs: int) -> Any:
    """A share of the run stays one; vector steps become environment steps."""
    number = _number(value)
    return value if number is None or number <= 1 else number * num_envs


def _evaluation(move: _Move) -> None:
    """Epochs of that solver are rollouts. The warm-up includes its last epoch."""
    if move.has("eval_freq_epochs"):
        epochs = _whole(move.take("eval_freq_epochs", "evaluation.every_steps")) or 0
        move.put("evaluation.every_steps", epochs * move.rollout_rows)
    if move.has("eval_warmup_epochs"):
        epochs = _whole(move.take("eval_warmup_epochs", "evaluation.warmup_steps")) or 0
        move.put("evaluation.warmup_steps", epochs * move.rollout_rows + 1 if epochs > 0 else 0)


def _spaces(move: _Move) -> None:
    """`spec` described spaces and rewards, which the environment itself says."""
    if move.has("spec"):
        move.take("spec", DROPPED)


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _device(move: _Move) -> None:
    """`cuda` in those files meant the author's machine; `auto` takes a GPU where there is one."""
    path = "experiment.device"
    if move.get(path) == "cuda" and origin_of(path, move.origins) != COMMAND_LINE:
        move.put(path, "auto")
        move.done.insert(0, (f"{path} cuda", "auto"))  # never hidden behind "and 9 more"


def _normalization(move: _Move) -> None:
    if move.get("environment.normalize_obs") == "rolling":
        move.put("environment.normalize_obs", "running")


def _wrapper(move: _Move) -> None:
    """`wrapper: gym` chose a base class; there is only one now."""
    if move.get("environment.wrapper") in ("gym", "gymnasium", None) and move.has(
        "environment.wrapper"
    ):
        move.drop("environment.wrapper")
        forget("environment.wrapper", move.origins)
        move.done.append(("environment.wrapper", DROPPED))


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
