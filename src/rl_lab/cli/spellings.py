"""Commands and options of other libraries: which command of ours means the same.

Looked at only after a command line was refused, to write the line that would have worked.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

ALGORITHM = ("--algo", "--algorithm", "--algo-id", "--run", "--agent")
ENVIRONMENT = ("--env", "--env-id", "--gym-id", "--env-name", "--environment", "--environment-id")
OURS = (  # options of ours that have a value
    *("--seed", "--jobs", "--total-timesteps", "--max-timesteps", "--resume", "--fork", "--config"),
    *("--config-dir", "--plugin", "--init-from-run", "--runs-dir", "--episodes", "--max-steps"),
    *("--video", "--diff"),
)
OPTIONS = {  # an option of ours, with the same value
    "-n": "--total-timesteps",
    "--n-timesteps": "--total-timesteps",
    "--num-timesteps": "--total-timesteps",
    "--timesteps": "--total-timesteps",
    "--total-steps": "--total-timesteps",
    "--total-frames": "--total-timesteps",
    "--stop-timesteps": "--total-timesteps",
    "--conf-file": "--config",
    "-f": "--runs-dir",
    "--log-folder": "--runs-dir",
    "--local-dir": "--runs-dir",
    "--storage-path": "--runs-dir",
    "-i": "--init-from-run",
    "--trained-agent": "--init-from-run",
    "--n-eval-episodes": "--episodes",
    "--num-episodes": "--episodes",
    "--n-episodes": "--episodes",
    "--num-rollouts": "--episodes",
    "--max-path-length": "--max-steps",
    "--restore": "--resume",
}
KEYS = {  # a key of the configuration; more are in config/legacy/keys.py
    "lr": "algorithm.learning_rate",
    "q_lr": "algorithm.critic_learning_rate",
    "lambda": "algorithm.gae_lambda",
    "clip_param": "algorithm.clip_range",
    "num_sgd_iter": "algorithm.epochs",
    "sgd_minibatch_size": "algorithm.batch_size",
    "train_frequency": "algorithm.train_every",
    "train_freq": "algorithm.train_every",
    "target_network_frequency": "algorithm.target_every",
    "target_update_interval": "algorithm.target_every",
    "buffer_size": "buffers.replay.capacity",
    "num_workers": "environment.num_envs",
    "num_env_runners": "environment.num_envs",
    "max_episode_steps": "environment.max_episode_steps",
    "exp_name": "experiment.name",
    "run_name": "experiment.name",
    "num_threads": "compute.threads",
    "eval_freq": "evaluation.every_steps",
    "evaluation_interval": "evaluation.every_steps",
    "eval_episodes": "evaluation.episodes",
    "n_eval_envs": "evaluation.num_envs",
    "stop_reward": "evaluation.stop_at",
    "save_freq": "checkpoint.every_steps",
    "checkpoint_frequency": "checkpoint.every_steps",
    "wandb_project_name": "logging.wandb.project",
    "wandb_entity": "logging.wandb.entity",
}
FLAGS: dict[str, list[str]] = {  # without a value; what is always so here needs no word
    "-P": [],
    "--progress": [],
    "--anneal-lr": [],
    "--cuda": [],
    "--no-cuda": ["experiment.device=cpu"],
    "--torch-deterministic": [],
    "--save-model": [],
    "--save-replay-buffer": [],
    "--capture-video": [],
    "--norm-adv": [],
    "--no-render": [],
    "--deterministic": [],
    "--stochastic": ["--sample"],
    "--run-eagerly": ["compute.compile=off"],
}
DROPPED = ("--framework", "--exp-id", "--log-interval", "--tensorboard-log", "--verbose")
STOP = {"timesteps_total": "--total-timesteps", "num_env_steps_sampled": "--total-timesteps"}
VECTORS = {"subproc": "process", "dummy": "sync"}
COMMANDS = {
    **dict.fromkeys(("learn", "run", "fit"), "train CartPole-v1:ppo"),
    **dict.fromkeys(("enjoy", "watch", "render"), "play @last"),
    **dict.fromkeys(("eval", "test"), "evaluate @last"),
    **dict.fromkeys(("ls", "runs", "experiments"), "list"),
    **dict.fromkeys(("tune", "optimize"), "sweep FILE"),
    "resume": "train --resume @last",
    "continue": "train --resume @last",
    "plot": "compare @last --plot curves.png",
    "info": "show @last",
    "remove": "cleanup --dry-run",
}


def hint(words: Sequence[str]) -> str:
    """` (here: rl-lab …)` for a command line in another library's words, or nothing."""
    command = translated(words)
    return "" if command is None else f" (here: {shlex.join(['rl-lab', *command])})"


def translated(words: Sequence[str]) -> list[str] | None:
    """The words of ours that mean the same; None if there is nothing to translate."""
    first = words[0] if words else ""
    if first in COMMANDS:
        return COMMANDS[first].split()
    verb, rest = ("train", words) if first.startswith("-") else (first, words[1:])
    if verb not in ("train", "config", "evaluate", "play"):
        return None
    kept: list[str] = []
    named: dict[str, str] = {}
    found = False
    values = iter(_split(rest))
    for word in values:
        option = word.replace("_", "-") if word.startswith("--") else word
        if option in OURS:
            kept += [option, next(values, "")]
        elif not word.startswith("-") and "=" not in word:
            named["subject"] = word
        elif option in ALGORITHM or option in ENVIRONMENT:
            named["algorithm" if option in ALGORITHM else "environment"] = next(values, "")
            found = True
        elif (meant := _meaning(option, values)) is not None:
            kept += meant
            found = True
        else:
            kept.append(word)
    return [verb, *_subject(verb, named), *kept] if found else None


def _meaning(option: str, values: Iterator[str]) -> list[str] | None:
    """What one option becomes, together with its value; None: it is not one of theirs."""
    if option in FLAGS:
        return FLAGS[option]
    if option in DROPPED:
        next(values, "")
        return []
    if option in OPTIONS:
        return [OPTIONS[option], next(values, "")]
    if option == "--stop":
        return _stop(next(values, ""))
    if option == "--vec-env":
        kind = next(values, "")
        return [f"environment.vectorization={VECTORS.get(kind, kind)}"]
    if option in ("--hyperparams", "-params", "--env-kwargs"):
        block = "environment.kwargs." if option == "--env-kwargs" else ""
        pairs = [value.partition(":") for value in values]  # the rest of the line, as in the zoo
        return [f"{block}{name if block else key_of(name) or name}={v}" for name, _, v in pairs]
    key = key_of(option.removeprefix("--")) if option.startswith("--") else None
    return None if key is None else [f"{key}={next(values, '')}"]


def key_of(name: str) -> str | None:
    """The key of ours for a name such as `ent-coef`; None if nobody calls anything so."""
    from rl_lab.config.legacy.keys import RENAMED

    plain = name.replace("-", "_")
    return KEYS.get(plain) or RENAMED.get(plain) or RENAMED.get(f"algorithm.{plain}")


def _subject(verb: str, named: Mapping[str, str]) -> list[str]:
    """The experiment, or the run, that is meant."""
    subject, environment = named.get("subject", ""), named.get("environment", "")
    algorithm = named.get("algorithm", "").lower().replace("-", "_")
    if verb in ("evaluate", "play"):
        return [subject or (f"@best:{environment}" if environment else "@best")]
    if not (subject or environment or algorithm):
        return []
    known, variant = subject, ""
    if ":" in subject and not re.search(r"-v\d+$", subject):  # `module:Reach-v0` is all of an id
        known, _, variant = subject.rpartition(":")
    spec, variant = environment or known or "ENVIRONMENT", algorithm or variant
    return [f"{spec}:{variant}" if variant else spec]


def _split(words: Sequence[str]) -> list[str]:
    """`--option=value` as two words."""
    parts: list[str] = []
    for word in words:
        found = re.match(r"(--[\w-]+)=(.*)", word, re.DOTALL)
        parts += [found[1], found[2]] if found else [word]
    return parts


def _stop(text: str) -> list[str]:
    """RLlib's `--stop '{"timesteps_total": 50000}'`."""
    try:
        conditions = json.loads(text)
    except ValueError:
        return []
    words: list[str] = []
    for name, value in conditions.items() if isinstance(conditions, dict) else ():
        words += [STOP[name], f"{value:g}"] if name in STOP else []
        words += [f"evaluation.stop_at={value}"] if "reward" in name or "return" in name else []
    return words
