"""The same job done by us and by other libraries, each through its own front door.

The imports of other libraries are inside the functions: none of them has to be installed.
"""

import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rl_lab.benchmarking.settings import (
    IN_A_ROW,
    JUDGED,
    Clock,
    Job,
    ReplaySettings,
    Settings,
    Timed,
)

OURS, PLAIN = "rl-lab", "plain"


@dataclass(frozen=True)
class Contestant:
    """Who takes part, what it is, the module it needs, and what it does if not everything."""

    about: str
    module: str
    train: Callable[[Job], Timed]
    algorithms: tuple[str, ...] = ("ppo", "dqn", "sac")
    env: str | None = None  # the only one that it plays

    def obstacle(self, job: Job) -> str | None:
        """Why it does not take part in a job; None if it does."""
        if job.values.algorithm not in self.algorithms:
            return f"does {', '.join(self.algorithms)} only"
        return None if self.env in (None, job.env) else f"plays {self.env} only"

    @property
    def installed(self) -> bool:
        """Whether it can run here."""
        return find_spec(self.module) is not None


def ours(job: Job) -> Timed:
    """The real loop of a run: its folder, guards and last checkpoint. No evaluation, one row."""
    from rl_lab.api import configure
    from rl_lab.orchestration.build import build_run
    from rl_lab.orchestration.resolve import resolve
    from rl_lab.orchestration.values import as_override
    from rl_lab.records.run_directory import RunDirectory
    from rl_lab.records.sinks import Sinks

    words = [as_override(path, value) for path, value in our_settings(job).items()]
    config = resolve(configure(overrides=words)[0])
    clock = Clock(job)
    with tempfile.TemporaryDirectory(prefix="rl-lab-bench-") as folder:
        run, _ = build_run(
            config, lambda: RunDirectory.create(Path(folder), "bench"), Sinks([], None)
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


def our_settings(job: Job) -> dict[str, Any]:
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
        "evaluation.every_steps": 0,
        "checkpoint.every_steps": 0,
        "logging.every_steps": 2 * job.steps,
        "compute.compile": "on" if job.compile else "off",
        "compute.threads": job.threads,
    }


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
        "network.encoder.hidden_dims": [values.hidden, values.hidden],
        "network.encoder.activation": "tanh",
    }


def our_command(job: Job) -> list[str]:
    """The words of `rl-lab train` that end where the return is reached; the defaults otherwise."""
    from rl_lab.api import configure
    from rl_lab.orchestration.resolve import resolve
    from rl_lab.orchestration.values import as_override

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

    from rl_lab.benchmarking import plain_dqn, plain_ppo

    torch.set_num_threads(job.threads)
    return (plain_ppo if job.values.algorithm == "ppo" else plain_dqn).train(job)


def whole_program(job: Job) -> Timed:
    """The program in plain_jax.py."""
    from rl_lab.benchmarking import plain_jax

    return plain_jax.train(job)


def stable_baselines3(job: Job) -> Timed:
    """Stable-Baselines3, with its DummyVecEnv."""
    import stable_baselines3
    import torch

    torch.set_num_threads(job.threads)
    return _baselines(job, stable_baselines3, torch.nn.Tanh, torch.nn.ReLU)


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
    model = getattr(library, values.algorithm.upper())(
        "MlpPolicy",
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
    OURS: Contestant("this library, its real loop", "rl_lab", ours),
    PLAIN: Contestant("a plain single-file loop in torch", "gymnasium", plain, ("ppo", "dqn")),
    "sb3": Contestant("Stable-Baselines3", "stable_baselines3", stable_baselines3),
    "sbx": Contestant("Stable-Baselines3 in JAX", "sbx", sbx),
    "jax": Contestant("one compiled JAX program", "jax", whole_program, ("ppo",), "CartPole-v1"),
}
