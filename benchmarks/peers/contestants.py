"""The same job done by us and by other libraries, each through its own front door.

The imports of other libraries are inside the functions: none of them has to be installed.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.peers.settings import (
    EPISODES,
    IN_A_ROW,
    JUDGED,
    Clock,
    Job,
    ReplaySettings,
    Settings,
    Timed,
)
from rl_lab.core.errors import RunError

OURS, DEFAULT, PLAIN, CLEANRL = "rl-lab", "rl-lab-default", "plain", "cleanrl"


@dataclass(frozen=True)
class Contestant:
    """Who takes part, what it is, the module it needs, and what it does if not everything."""

    about: str
    module: str
    train: Callable[[Job], Timed]
    algorithms: tuple[str, ...] = ("ppo", "dqn", "sac")
    env: str | None = None  # the only one that it plays
    needs_script: bool = False  # a file of its own, which the user has to name
    evaluates: bool = True  # on the way, as --until needs it
    memories: tuple[str, ...] = ("none",)  # that it can have

    def obstacle(self, job: Job) -> str | None:
        """Why it does not take part in a job; None if it does."""
        if job.until is not None and not self.evaluates:
            return "takes no part in --until"
        if self.needs_script and job.cpu:
            return "has a process of its own: --cpu does not see it"
        if self.needs_script and job.script is None:
            return "give its own script: --cleanrl PATH/TO/ppo.py"
        if job.values.algorithm not in self.algorithms:
            return f"does {', '.join(self.algorithms)} only"
        if job.values.memory not in self.memories:
            return f"takes part with memory {', '.join(self.memories)} only"
        return None if self.env in (None, job.env) else f"plays {self.env} only"

    @property
    def installed(self) -> bool:
        """Whether it can run here."""
        return find_spec(self.module) is not None


def ours(job: Job, *, quiet: bool = True) -> Timed:
    """The real loop of a run: its folder, guards and last checkpoint. No evaluation, one row.

    Not `quiet`: a default run, with evaluations, rows of metrics, checkpoints and TensorBoard.
    """
    from rl_lab.api import configure
    from rl_lab.config.resolve import resolve
    from rl_lab.config.values import as_override
    from rl_lab.display.sinks import Sinks, TensorBoardSink
    from rl_lab.records.run_directory import RunDirectory
    from rl_lab.run.build import build_run

    settings = our_settings(job) if quiet else equal_settings(job)
    words = [as_override(path, value) for path, value in settings.items()]
    config = resolve(configure(overrides=words)[0])
    clock = Clock(job)
    with tempfile.TemporaryDirectory(prefix="rl-lab-bench-") as folder:
        sinks = [] if quiet else [TensorBoardSink(Path(folder) / "tensorboard")]
        run, _ = build_run(
            config, lambda: RunDirectory.create(Path(folder), "bench"), Sinks(sinks, None)
        )
        with closing(run):
            after_cycle = run.after_cycle
            collector: Any = run.collector

            def after() -> None:
                after_cycle()
                clock.rollout_done(collector.episodes.returns)

            run.after_cycle = after  # type: ignore[method-assign]
            run.run()
            return clock.result(collector.episodes.returns)


def default_run(job: Job) -> Timed:
    """What `rl-lab train` does by default."""
    return ours(job, quiet=False)


def equal_settings(job: Job) -> dict[str, Any]:
    """The job in our own words; no preset, so that nothing else comes in."""
    own = _ppo_settings if job.values.algorithm == "ppo" else _replay_settings
    return {
        "environment.id": job.env,
        "environment.num_envs": job.values.num_envs,
        "experiment.seed": job.seed,
        "experiment.device": "cpu",
        "algorithm.name": job.values.algorithm,
        "algorithm.gamma": job.values.gamma,
        "algorithm.batch_size": job.values.batch_size,
        **own(job.values),
        "training.total_timesteps": job.steps,
        "compute.compile": "on" if job.compile else "off",
        "compute.threads": job.threads,
    }


def our_settings(job: Job) -> dict[str, Any]:
    """The job without evaluations, checkpoints and rows of metrics: peers write none either."""
    quiet = {"evaluation.every_steps": 0, "checkpoint.every_steps": 0}
    return equal_settings(job) | quiet | {"logging.every_steps": 2 * job.steps}


def _replay_settings(values: ReplaySettings) -> dict[str, Any]:
    settings = {
        "algorithm.train_every": values.train_every,
        "algorithm.replay_ratio": values.gradient_steps / values.train_every,
        "algorithm.learning_starts": values.learning_starts,
        "algorithm.learning_rate": values.learning_rate,
        "algorithm.target_every": values.target_every,
        "algorithm.target_rate": values.target_rate,
        "algorithm.optimizer.eps": 1e-8,
        "buffers.replay.capacity": values.capacity,
    }
    layers = list(values.hidden)
    if values.algorithm == "dqn":
        epsilon = {"start": 1.0, "end": values.epsilon, "to": values.explored}
        return settings | {
            "algorithm.double": False,  # as the others
            "algorithm.epsilon": epsilon,
            "network.encoder.hidden_dims": layers,
        }
    return settings | {"network.actor.hidden_dims": layers, "network.critic.hidden_dims": layers}


def _ppo_settings(values: Settings) -> dict[str, Any]:
    decay = "lin_" if values.decay else ""
    layers = [values.hidden, values.hidden]
    network: dict[str, Any] = {
        "network.encoder.hidden_dims": layers,
        "network.encoder.activation": "tanh",
    }
    if values.memory != "none":  # the layers come after it, as in Stable-Baselines3
        network = {
            "network.encoder.hidden_dims": [],
            "network.memory.type": values.memory,
            "network.memory.hidden_dim": values.hidden,
            "network.actor.hidden_dims": layers,
            "network.critic.hidden_dims": layers,
            "algorithm.sequence_length": values.sequence_length,
        }
    return {
        "algorithm.rollout_steps": values.rollout_steps,
        "algorithm.epochs": values.epochs,
        "algorithm.gae_lambda": values.gae_lambda,
        "algorithm.learning_rate": f"{decay}{values.learning_rate}",
        "algorithm.clip_range": f"{decay}{values.clip_range}",
        "algorithm.entropy_coefficient": values.entropy_coefficient,
        "algorithm.value_coefficient": values.value_coefficient,
        "algorithm.max_grad_norm": values.max_grad_norm,
        "algorithm.normalize_advantages": "batch",
        "algorithm.optimizer.eps": 1e-5,
        **network,
    }


def our_command(job: Job) -> list[str]:
    """The words of `rl-lab train` that end where the return is reached; the defaults otherwise."""
    from rl_lab.api import configure
    from rl_lab.config.resolve import resolve
    from rl_lab.config.values import as_override

    settings = our_settings(job)
    config = configure(overrides=[as_override(*each) for each in settings.items()])[0]
    settings |= {
        # As in the others, environments live in the one process.
        "environment.vectorization": resolve(config).environment.vectorization,
        "evaluation.every_steps": job.every,
        "evaluation.episodes": JUDGED,
        "evaluation.num_envs": JUDGED,
        "evaluation.stop_at": job.until,
        "evaluation.patience": IN_A_ROW,
        "evaluation.test_episodes": 0,  # what comes after the training
        "logging.every_steps": 0,
        "logging.tensorboard": False,  # nobody else writes events or reports
        "logging.report": False,
    }
    return ["train", *(as_override(path, value) for path, value in settings.items())]


def plain(job: Job) -> Timed:
    """The loop in plain_ppo.py, or in plain_dqn.py."""
    import torch

    from benchmarks.peers import plain_dqn, plain_ppo

    torch.set_num_threads(job.threads)
    return (plain_ppo if job.values.algorithm == "ppo" else plain_dqn).train(job)


def whole_program(job: Job) -> Timed:
    """The program in plain_jax.py."""
    from benchmarks.peers import plain_jax

    return plain_jax.train(job)


def cleanrl(job: Job) -> Timed:
    """CleanRL's own ppo.py, as its file is; it prints a line with `SPS:` after every update."""
    assert job.script is not None
    values, clock = job.values, Clock(job)
    arguments = {
        "--env-id": job.env,
        "--seed": job.seed,
        "--total-timesteps": job.steps,
        "--num-envs": values.num_envs,
        "--num-steps": values.rollout_steps,
        "--num-minibatches": values.rows // values.batch_size,
        "--update-epochs": values.epochs,
        "--gamma": values.gamma,
        "--gae-lambda": values.gae_lambda,
        "--learning-rate": values.learning_rate,
        "--clip-coef": values.clip_range,
        "--ent-coef": values.entropy_coefficient,
        "--vf-coef": values.value_coefficient,
        "--max-grad-norm": values.max_grad_norm,
    }
    words = [str(word) for pair in arguments.items() for word in pair]
    words += ["--anneal-lr" if values.decay else "--no-anneal-lr", "--no-clip-vloss", "--no-cuda"]
    returns: list[float] = []
    script = str(Path(job.script).resolve())
    with (
        tempfile.TemporaryDirectory(prefix="rl-lab-bench-") as folder,
        subprocess.Popen(
            [sys.executable, "-u", script, *words],
            cwd=folder,  # it writes its events where it stands
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            if "episodic_return=" in line:
                number = line.partition("episodic_return=")[2].partition(",")[0]
                returns.append(float(number.strip(" []\n")))
            elif line.startswith("SPS:"):
                clock.rollout_done(returns[-EPISODES:])
        problem = process.stderr.read().strip().splitlines() or ["no error message"]
    if process.returncode:
        raise RunError(f"{job.script}: exit code {process.returncode}: {problem[-1]}")
    return clock.result(returns[-EPISODES:])


def stable_baselines3(job: Job) -> Timed:
    """Stable-Baselines3, with its DummyVecEnv."""
    import stable_baselines3
    import torch

    torch.set_num_threads(job.threads)
    return _baselines(job, stable_baselines3, torch.nn.Tanh, torch.nn.ReLU)


def recurrent(job: Job) -> Timed:
    """RecurrentPPO: an LSTM for the actor and one for the critic, as here."""
    import sb3_contrib
    import torch

    torch.set_num_threads(job.threads)
    return _baselines(job, sb3_contrib, torch.nn.Tanh, torch.nn.ReLU)


def sbx(job: Job) -> Timed:
    """Stable-Baselines3 in JAX."""
    import sbx as library
    from flax import linen

    return _baselines(job, library, linen.tanh, linen.relu)


def _baselines(job: Job, library: Any, tanh: Any, relu: Any) -> Timed:
    """Both libraries have one interface."""
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    values, clock = job.values, Clock(job)
    tests = None if job.until is None else make_vec_env(job.env, n_envs=JUDGED, seed=job.seed + 1)

    def score(model: Any) -> float:
        return float(evaluate_policy(model, tests, n_eval_episodes=JUDGED, deterministic=True)[0])

    class Watch(BaseCallback):  # type: ignore[misc]
        """Called where a rollout begins: the update of the one before is over."""

        over = False

        def _on_step(self) -> bool:
            return not self.over

        def _on_rollout_start(self) -> None:
            if self.num_timesteps:
                clock.rollout_done(returns(self.model))
                self.over = clock.reached(lambda: score(self.model))

    def returns(model: Any) -> list[float]:
        return [float(each["r"]) for each in model.ep_info_buffer]

    own = _ppo_arguments(values, tanh) if values.algorithm == "ppo" else _replay(values, relu)
    remembers = values.memory != "none"
    if remembers:
        own["policy_kwargs"]["lstm_hidden_size"] = values.hidden
    model = getattr(library, "RecurrentPPO" if remembers else values.algorithm.upper())(
        "MlpLstmPolicy" if remembers else "MlpPolicy",
        make_vec_env(job.env, n_envs=values.num_envs, seed=job.seed),
        batch_size=values.batch_size,
        gamma=values.gamma,
        seed=job.seed,
        device="cpu",
        **own,
    )
    watch = Watch()
    model.learn(job.steps, callback=watch, log_interval=10 * job.rollouts)
    if not watch.over:  # the last update is followed by no rollout
        clock.rollout_done(returns(model))
        clock.reached(lambda: score(model))
    return clock.result(returns(model))


def _ppo_arguments(values: Settings, activation: Any) -> dict[str, Any]:
    def schedule(start: float) -> Any:
        return (lambda left: left * start) if values.decay else start

    width = [values.hidden, values.hidden]
    return {
        "n_steps": values.rollout_steps,
        "n_epochs": values.epochs,
        "gae_lambda": values.gae_lambda,
        "learning_rate": schedule(values.learning_rate),
        "clip_range": schedule(values.clip_range),
        "ent_coef": values.entropy_coefficient,
        "vf_coef": values.value_coefficient,
        "max_grad_norm": values.max_grad_norm,
        "normalize_advantage": True,
        "policy_kwargs": {"net_arch": {"pi": width, "vf": width}, "activation_fn": activation},
    }


def _replay(values: ReplaySettings, activation: Any) -> dict[str, Any]:
    arguments = {
        "learning_rate": values.learning_rate,
        "buffer_size": values.capacity,
        "learning_starts": values.learning_starts,
        "train_freq": values.train_every,
        "gradient_steps": values.gradient_steps,
        "tau": values.target_rate,
        "policy_kwargs": {"net_arch": list(values.hidden), "activation_fn": activation},
    }
    # Theirs is counted in environment steps, ours in gradient steps.
    interval = values.target_every * values.train_every // values.gradient_steps
    if values.algorithm == "dqn":
        return arguments | {
            "target_update_interval": interval,
            "exploration_fraction": values.explored,
            "exploration_final_eps": values.epsilon,
        }
    return arguments


CONTESTANTS = {
    OURS: Contestant(
        "this library, its real loop", "rl_lab", ours, memories=("none", "lstm", "gru")
    ),
    DEFAULT: Contestant(
        "this library with all that is on by default", "rl_lab", default_run, evaluates=False
    ),
    PLAIN: Contestant("a plain single-file loop in torch", "gymnasium", plain, ("ppo", "dqn")),
    "sb3": Contestant("Stable-Baselines3", "stable_baselines3", stable_baselines3),
    "sb3-contrib": Contestant(
        "RecurrentPPO of Stable-Baselines3's contributions",
        "sb3_contrib",
        recurrent,
        ("ppo",),
        memories=("lstm", "gru"),  # in place of a GRU it has its LSTM
    ),
    "sbx": Contestant("Stable-Baselines3 in JAX", "sbx", sbx),
    CLEANRL: Contestant(
        "CleanRL's own ppo.py",
        "gymnasium",
        cleanrl,
        ("ppo",),
        needs_script=True,
        evaluates=False,
    ),
    "jax": Contestant("one compiled JAX program", "jax", whole_program, ("ppo",), "CartPole-v1"),
}
