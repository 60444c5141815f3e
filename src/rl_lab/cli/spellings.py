"""Commands and options of other libraries: which command of ours means the same.

Looked at only after a command line was refused, to write the line that would have worked. A line
is printed only if `rl-lab config` accepts it; what has no place in it is named behind it.
"""

import json
import re
import shlex
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_lab.core.errors import UserError
from rl_lab.core.schema import RunConfig

CONFIGURED = ("train", "config")
OF_BOTH = ("--seed", "--total-timesteps", "--max-timesteps", "--config", "--config-dir", "--plugin")
OPTIONS = {  # ours, with a value
    "train": (*OF_BOTH, "--runs-dir", "--jobs", "--resume", "--fork", "--init-from-run"),
    "config": (*OF_BOTH, "--runs-dir", "--diff"),
    "evaluate": ("--seed", "--runs-dir", "--episodes"),
    "play": ("--seed", "--runs-dir", "--episodes", "--max-steps", "--video"),
}
FLAGS = ("--track", "--debug", "-q", "--quiet", "--trust", "--json", "--sample", "--list-envs")
ALGORITHM = ("--algo", "--algorithm", "--algo-id", "--run", "--agent")
ENVIRONMENT = ("--env", "--env-id", "--gym-id", "--env-name", "--environment", "--environment-id")
PAIRS = ("--hyperparams", "-params", "--env-kwargs")  # followed by name:value name:value

STEPS = "--total-timesteps {}"
WORKERS = "environment.vectorization=process environment.workers={}"
EPISODES = ("evaluation.episodes={}", "--episodes {}")
ALWAYS = "(always on)"
EPSILON = "(a part of algorithm.epsilon={start: 1.0, end: 0.05, to: 0.2}; {} has no key alone)"
FILM = "(no counterpart while training: rl-lab play @last --video last.gif)"

# Their option -> ours; of several, the first that the command and the algorithm accept. `{}` is
# its value, and what has none is a flag; `{rate}` is the learning rate of the line; what stands in
# brackets is explained, not typed. Further names of keys are in config/legacy/keys.py.
SPELLINGS: dict[str, str | tuple[str, ...]] = {
    "-n": (STEPS, "--max-steps {}"),
    "--n-timesteps": (STEPS, "--max-steps {}"),
    "--num-timesteps": STEPS,
    "--timesteps": STEPS,
    "--total-steps": STEPS,
    "--total-frames": STEPS,
    "--stop-timesteps": STEPS,
    "--conf-file": "--config {}",
    "-f": "--runs-dir {}",
    "--log-folder": "--runs-dir {}",
    "--local-dir": "--runs-dir {}",
    "--storage-path": "--runs-dir {}",
    "-i": "--init-from-run {}",
    "--trained-agent": "--init-from-run {}",
    "--restore": "--resume {}",
    "--episodes": EPISODES,
    "--n-eval-episodes": EPISODES,
    "--eval-episodes": EPISODES,
    "--num-episodes": EPISODES,
    "--n-episodes": EPISODES,
    "--num-rollouts": EPISODES,
    "--max-path-length": ("environment.max_episode_steps={}", "--max-steps {}"),
    "--max-episode-steps": ("environment.max_episode_steps={}", "--max-steps {}"),
    "--lr": "algorithm.learning_rate={}",
    "--q-lr": "algorithm.critic_learning_rate={}",
    "--policy-lr": ("algorithm.actor_learning_rate={}", "algorithm.learning_rate={}"),
    "--anneal-lr": "algorithm.learning_rate=lin_{rate}",
    "--no-anneal-lr": "algorithm.learning_rate={rate}",
    "--lambda": "algorithm.gae_lambda={}",
    "--clip-param": "algorithm.clip_range={}",
    "--clip-vloss": "(write its range: algorithm.value_clip=0.2)",
    "--norm-adv": "algorithm.normalize_advantages=batch",
    "--no-norm-adv": "algorithm.normalize_advantages=off",
    "--normalize-advantage": "algorithm.normalize_advantages=batch",
    "--no-normalize-advantage": "algorithm.normalize_advantages=off",
    "--num-sgd-iter": "algorithm.epochs={}",
    "--num-minibatches": (
        "algorithm.minibatches={}",
        "~algorithm.batch_size algorithm.minibatches={}",
    ),
    "--sgd-minibatch-size": "algorithm.batch_size={}",
    "--ent-coef": ("algorithm.entropy_coefficient={}", "algorithm.temperature={}"),
    "--alpha": "algorithm.temperature={}",
    "--autotune": "algorithm.temperature=auto",
    "--no-autotune": "(write the temperature: algorithm.temperature=0.2)",
    "--train-frequency": "algorithm.train_every={}",
    "--train-freq": "algorithm.train_every={}",
    "--policy-frequency": "algorithm.actor_every={}",
    "--target-network-frequency": "algorithm.target_every={}",
    "--target-update-interval": "algorithm.target_every={}",
    "--learning-starts": "algorithm.learning_starts={}",
    "--exploration-fraction": "algorithm.epsilon={start: 1.0, end: 0.05, to: {}}",
    "--exploration-final-eps": EPSILON,
    "--start-e": EPSILON,
    "--end-e": EPSILON,
    "--buffer-size": "buffers.replay.capacity={}",
    "--policy": "network.encoder.type={}",
    "--net-arch": "network.encoder.hidden_dims=[] network.actor.hidden_dims={}"
    " network.critic.hidden_dims={}",
    "--vec-env": "environment.vectorization={}",
    "--num-workers": (WORKERS, f"{WORKERS} environment.num_envs={{}}"),
    "--num-env-runners": (WORKERS, f"{WORKERS} environment.num_envs={{}}"),
    "--exp-name": "experiment.name={}",
    "--run-name": "experiment.name={}",
    "--num-threads": "compute.threads={}",
    "--run-eagerly": "compute.compile=off",
    "--cuda": "(a GPU is used where there is one)",
    "--no-cuda": "experiment.device=cpu",
    "--eval-freq": "evaluation.every_steps={}",
    "--evaluation-interval": "evaluation.every_steps={}",
    "--n-eval-envs": "evaluation.num_envs={}",
    "--stop-reward": "evaluation.stop_at={}",
    "--save-freq": "checkpoint.every_steps={}",
    "--checkpoint-freq": "checkpoint.every_steps={}",
    "--checkpoint-frequency": "checkpoint.every_steps={}",
    "--wandb-project-name": "logging.wandb.project={}",
    "--wandb-entity": "logging.wandb.entity={}",
    "--stochastic": ("evaluation.deterministic=false", "--sample"),
    "--deterministic": ALWAYS,
    "-P": ALWAYS,
    "--progress": ALWAYS,
    "--torch-deterministic": ALWAYS,
    "--save-model": ALWAYS,
    "--save-replay-buffer": ALWAYS,
    "--tensorboard-log": "(always on, in the folder of the run and not in {})",
    "--capture-video": FILM,
    "--no-render": "(rl-lab evaluate opens no window)",
    "--framework": "(no counterpart for {}: always PyTorch)",
    "--exp-id": "(no counterpart for {}: @last, or an id of rl-lab list)",
    "--log-interval": "(no counterpart for {})",
    "--verbose": "(no counterpart for {}: -q prints only the result)",
    "--optimize": "sweep",
    "-optimize": "sweep",
    "--optimize-hyperparameters": "sweep",
    "--n-trials": "sweep --trials {}",
    "--n-jobs": "sweep --jobs {}",
}
VALUES = {
    "--vec-env": {"subproc": "process", "dummy": "sync"},
    "--policy": {"MlpPolicy": "mlp", "CnnPolicy": "nature", "MultiInputPolicy": "auto"},
}
STOP = {"timesteps_total": "--total-timesteps", "num_env_steps_sampled": "--total-timesteps"}
COMMANDS = {
    **dict.fromkeys(("learn", "run", "fit"), "train CartPole-v1:ppo"),
    **dict.fromkeys(("enjoy", "watch", "render"), "play @last"),
    **dict.fromkeys(("eval", "test"), "evaluate @last"),
    **dict.fromkeys(("ls", "runs", "experiments"), "list"),
    **dict.fromkeys(("tune", "optimize"), "sweep FILE"),
    "resume": "train --resume @last",
    "continue": "train --resume @last",
    "plot": "compare @last --plot curves.svg",
    "info": "show @last",
    "remove": "cleanup --dry-run",
}
UNNAMED = "ENVIRONMENT"  # stands where no environment was named
SHIPPED_SWEEPS = {"CartPole-v1:ppo": "cartpole_ppo"}


def hint(words: Sequence[str]) -> str:
    """` (here: rl-lab …)` for a command line in another library's words, or nothing."""
    line, notes = translated(words)
    said = [] if line is None else [f"here: {shlex.join(['rl-lab', *line])}"]
    return "".join(f" ({text})" for text in [*said, *(["; ".join(notes)] if notes else [])])


def translated(words: Sequence[str]) -> tuple[list[str] | None, list[str]]:
    """The words of ours that mean the same, None without any; and remarks about them."""
    first = words[0] if words else ""
    verb, rest = ("train", words) if first.startswith("-") else (first, words[1:])
    found = False
    if first in COMMANDS:
        verb, *subject = COMMANDS[first].split()
        if not rest or verb not in OPTIONS or subject[0].startswith("-"):
            return [verb, *subject], []
        found = True
    if verb not in OPTIONS:
        return None, []
    typed = _Typed(verb, rest)
    if not (found or typed.foreign):
        return None, []
    return _sweep(typed) if typed.sweep is not None else _line(typed)


@dataclass(frozen=True)
class _Option:
    """One option as it was typed, and what it may become."""

    name: str
    templates: tuple[str, ...]
    value: str = ""
    ours: bool = False

    def words(self, template: str, rate: str) -> list[str]:
        """One of the templates with the value in it."""
        parts = [template] if "={start" in template else template.split()
        return [part.replace("{}", self.value).replace("{rate}", rate) for part in parts]


class _Typed:
    """A command line, read: what it is about, its options, and what has no place here."""

    def __init__(self, verb: str, words: Sequence[str]) -> None:
        self.verb = verb
        self.foreign = False  # something of it is in another library's words
        self.options: list[_Option] = []
        self.notes: list[str] = []
        self.sweep: list[str] | None = None
        self._plain: list[str] = []
        self._named: dict[str, str] = {}
        self._words = deque(_split(words))
        while self._words:
            self._read(self._words.popleft())
        self._pair()
        self.options.sort(key=lambda option: "{rate}" in option.templates[0])  # these come last

    def _read(self, word: str) -> None:
        option = word.replace("_", "-") if word.startswith("--") else word
        if option in OPTIONS[self.verb]:
            self.options.append(_Option(option, (f"{option} {{}}",), self._value(), ours=True))
        elif option in FLAGS or (not word.startswith("-") and ("=" in word or word[0] == "~")):
            self.options.append(_Option(option, (word,), ours=True))
            self._said_false()
        elif not word.startswith("-"):
            self._plain.append(word)
        elif option in ALGORITHM or option in ENVIRONMENT:
            self._named["algorithm" if option in ALGORITHM else "environment"] = self._value()
            self.foreign = True
        else:
            self._translate(option)

    def _translate(self, option: str) -> None:
        if option in PAIRS:
            self._unfold(option)
        elif option == "--stop":
            words = _stop(self._value())
            self.options += [_Option(option, (word,), ours=True) for word in words]
        elif templates := templates_of(option):
            if any("{}" in template for template in templates):
                value = self._value(many=option == "--net-arch")
                value = VALUES.get(option, {}).get(value, value)
            else:
                value = ""
                if self._said_false():  # `--cuda False` is `--no-cuda`
                    option = f"--no-{option.removeprefix('--')}"
                    templates = templates_of(option) or ("(no counterpart)",)
            self._keep(_Option(option, templates, value))
        else:
            self.notes.append(f"{option}: no such option here")
            if self._words and not re.match(r"-|~|.*[:=]", self._words[0]):
                self._words.popleft()
            return
        self.foreign = True

    def _keep(self, option: _Option) -> None:
        template = option.templates[0]
        if template.startswith("("):
            self.notes.append(f"{option.name}: {template[1:-1].replace('{}', option.value)}")
        elif template.startswith("sweep"):
            self.sweep = [*(self.sweep or []), *option.words(template, "")[1:]]
        else:
            self.options.append(option)

    def _unfold(self, option: str) -> None:
        """`-params n_envs:4 ent_coef:0.01` as options of these names."""
        pairs = []
        while self._words and not self._words[0].startswith("-"):
            pairs.append(self._words.popleft().partition(":"))
        for name, _, value in reversed(pairs):
            if option == "--env-kwargs":
                self._words.appendleft(f"environment.kwargs.{name}={value}")
            else:
                self._words.extendleft([value, f"--{name}"])

    def _value(self, many: bool = False) -> str:
        """The next word; of a list such as `64 64`, all of its numbers."""
        value = self._words.popleft() if self._words else ""
        if not many:
            return value
        numbers = [value.strip("[]").replace(" ", "")]
        while self._words and self._words[0].isdigit():
            numbers.append(self._words.popleft())
        return f"[{','.join(numbers)}]"

    def _said_false(self) -> bool:
        """Take the True or False behind a flag; whether it was False."""
        if not self._words or self._words[0].lower() not in ("true", "false"):
            return False
        return self._words.popleft().lower() == "false"

    def _pair(self) -> None:
        """`CartPole-v1 ppo` and `ppo CartPole-v1` are an environment and an algorithm."""
        environments = [word for word in self._plain if re.search(r"-v\d+$|/", word)]
        others = [word for word in self._plain if re.fullmatch(r"\w+", word)]
        if self.verb in CONFIGURED and len(environments) == len(others) == 1:
            self._plain, self.foreign = [f"{environments[0]}:{others[0].lower()}"], True

    @property
    def subject(self) -> list[str]:
        """The experiment, or the run, that is meant."""
        plain, environment = self._plain[:1], self._named.get("environment", "")
        if self.verb not in CONFIGURED:
            return plain or [f"@best:{environment}" if environment else "@last"]
        written = [word for option in self.options for word in option.templates]
        if any(
            re.match(r"--(config|resume|fork) |\+?experiment=|environment\.id=", word)
            for word in written
        ):
            return []
        known, variant = plain[0] if plain else "", ""
        if ":" in known and not re.search(r"-v\d+$", known):  # `module:Reach-v0` is all of an id
            known, _, variant = known.rpartition(":")
        variant = self._named.get("algorithm", "").lower().replace("-", "_") or variant
        spec = environment or known or UNNAMED
        return [f"{spec}:{variant}" if variant else spec]


def templates_of(option: str) -> tuple[str, ...]:
    """What an option such as `--ent-coef` may become; nothing if no option is called so."""
    from rl_lab.config.legacy.keys import RENAMED

    if option in SPELLINGS:
        found = SPELLINGS[option]
        return (found,) if isinstance(found, str) else found
    plain = option.removeprefix("--").replace("-", "_")
    key = RENAMED.get(plain) or RENAMED.get(f"algorithm.{plain}")
    return (f"{key}={{}}",) if key and "." in key and option.startswith("--") else ()


def _line(typed: _Typed) -> tuple[list[str] | None, list[str]]:
    """The command of ours, of those options that it and its algorithm have."""
    subject, notes = typed.subject, list(typed.notes)
    chosen: dict[_Option, list[str]] = {}  # at first what needs no look at the configuration
    for option in typed.options:
        fitting = [each for each in option.templates if option.ours or _fits(typed.verb, each)]
        if fitting and (option.ours or fitting[0].startswith("-")):
            chosen[option] = option.words(fitting[0], "")

    def line(more: dict[_Option, list[str]]) -> list[str]:
        words = [word for option in typed.options for word in (chosen | more).get(option, [])]
        return [typed.verb, *subject, *_last_of_each(words)]

    try:
        config = _configured(line({}))
    except UserError as error:
        return None, [_first_line(error)]
    problems: dict[_Option, str] = {}
    for option in typed.options * 2:  # an option may need one that stands behind it
        for template in option.templates if option not in chosen else ():
            if not _fits(typed.verb, template):
                continue
            words = option.words(template, _rate(config))
            try:
                config = _configured(line({option: words}))
            except UserError as error:
                if _has(config, words[-1].partition("=")[0]) or option not in problems:
                    problems[option] = _problem(error, config, words[-1])
            else:
                chosen[option] = words
                break
    left = [option for option in typed.options if option not in chosen]
    kept = "a trained run keeps its settings"
    notes += [f"{option.name}: {problems.get(option, kept)}" for option in left]
    return line({}), notes


def _sweep(typed: _Typed) -> tuple[list[str], list[str]]:
    """A search for settings is another command."""
    spec = (typed.subject or [UNNAMED])[0]
    file = [SHIPPED_SWEEPS[spec]] if spec in SHIPPED_SWEEPS else ["FILE", "--base", spec]
    names = [option.name for option in typed.options]
    notes = [f"{', '.join(names)}: settings of a sweep are in its file"] if names else []
    return ["sweep", *file, *(typed.sweep or [])], [*typed.notes, *notes]


def _fits(verb: str, template: str) -> bool:
    """Whether a command has this option, or a configuration at all."""
    option = template.split()[0]
    return option in (*OPTIONS[verb], *FLAGS) if option[0] == "-" else verb in CONFIGURED


def _configured(line: Sequence[str]) -> Any:
    """The configuration of a line, as `rl-lab config` makes it; None where there is none.

    Raises UserError if it is refused.
    """
    from rl_lab.cli.request import Request

    verb, rest = line[0], iter(line[1:])
    words: list[str] = []
    values: dict[str, list[str]] = {name: [] for name in OPTIONS["train"]}
    for word in rest:
        if word in OPTIONS[verb]:
            values.setdefault(word, []).append(next(rest, ""))
        elif word not in FLAGS:
            words.append(re.sub(rf"^{UNNAMED}\b", "CartPole-v1", word))
    file = Path(values["--config"][-1]) if values["--config"] else None
    of_a_run = values["--resume"] or values["--fork"]
    if verb not in CONFIGURED or of_a_run or (file is not None and not file.is_file()):
        return None
    request = Request(
        words=words,
        config_file=file,
        config_dirs=[Path(each) for each in values["--config-dir"]],
        plugins=[Path(each) for each in values["--plugin"]],
        seed=next(iter(values["--seed"]), None),
        total_timesteps=next(iter(values["--total-timesteps"] + values["--max-timesteps"]), None),
    )
    return request.configure(request.seeds[0])[0]


def _problem(error: UserError, config: RunConfig, word: str) -> str:
    """Why an option is left out: the algorithm has none such, or not with this value."""
    if _has(config, word.partition("=")[0]):
        return _first_line(error)
    name = config.algorithm.name
    return f"{name} has no such option, see rl-lab algorithms {name}"


def _has(config: RunConfig, key: str) -> bool:
    """Whether there is such a key in a configuration."""
    from rl_lab.config.tree import to_tree

    here: object = {} if config is None else to_tree(config)
    for part in key.split("."):
        if not isinstance(here, Mapping):
            return True
        if part not in here:
            return False
        here = here[part]
    return True


def _rate(config: RunConfig) -> str:
    """The learning rate of a configuration, or that with which its schedule starts."""
    rate = getattr(getattr(config, "algorithm", None), "learning_rate", "RATE")
    return str(getattr(rate, "start", rate))


def _first_line(error: UserError) -> str:
    return str(error).splitlines()[0].partition(" — ")[0]


def _last_of_each(words: Sequence[str]) -> list[str]:
    """Of a key that is written twice, the last one, which wins."""
    last = {word.partition("=")[0]: at for at, word in enumerate(words) if "=" in word}
    return [
        word
        for at, word in enumerate(words)
        if "=" not in word or last[word.partition("=")[0]] == at
    ]


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
        words += [f"{STOP[name]} {value:g}"] if name in STOP else []
        words += [f"evaluation.stop_at={value}"] if "reward" in name or "return" in name else []
    return words
