"""200 bad numbers at random places and moments: none is ever kept by a run, whatever its policy."""

import random
import tempfile
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_lab.config.resolve import resolve
from rl_lab.core.errors import NonFiniteError
from rl_lab.display.sinks import Sinks
from rl_lab.records.run_directory import RunDirectory
from rl_lab.run.build import build_run
from rl_lab.run.guard import nonfinite_paths
from tiny_runs import tiny_config

INJECTIONS = 200
CHUNKS = 4  # so that workers can share
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # nobody pulls a plug here
PLACES = ("loss", "gradient", "weight", "moment", "statistic", "obs", "reward")
POLICIES = ("raise", "skip", "rollback")
VALUES = (float("nan"), float("inf"), float("-inf"))
SETTINGS = [
    "training.total_timesteps=256",
    "algorithm.rollout_steps=8",
    "algorithm.epochs=1",
    "algorithm.minibatches=2",
    "evaluation.every_steps=96",
    "evaluation.episodes=1",
    "evaluation.num_envs=1",
    "checkpoint.every_steps=64",
    "environment.num_envs=4",
    "environment.max_episode_steps=10",
    "environment.normalize_obs=true",
    "environment.normalize_reward=true",
    "logging.every_steps=96",
]


class Injection:
    """One bad number, once, at the n-th chance that its place offers."""

    def __init__(self, run, place, value, moment, dice):
        self.run, self.place, self.value, self.dice = run, place, value, dice
        self.left, self.struck = moment, False
        if place in ("obs", "reward"):
            run.environment.step = self.around(run.environment.step, self.in_step)
        elif place == "gradient":
            learner = run.workflow.learner
            learner._apply = self.before(learner._apply, self.in_gradient)
        elif place == "loss":
            run.hooks["update"] = self.before(run.hooks["update"], self.in_batch)
        else:
            run.execute = self.before(run.execute, self.in_state)

    def due(self):
        self.left -= 1
        self.struck = self.struck or self.left < 0
        return self.left == -1

    def around(self, call, spoil):
        return lambda *words, **options: spoil(call(*words, **options))

    def before(self, call, spoil):
        return lambda *words, **options: call(*spoil(*words), **options)

    def spoil(self, tensor):
        tensor.reshape(-1)[self.dice.randrange(tensor.numel())] = self.value

    def in_step(self, step):
        if not self.due():
            return step
        changed = {name: np.array(getattr(step, name)) for name in ("obs", "next_obs", "reward")}
        for name in ("obs", "next_obs") if self.place == "obs" else ("reward",):
            self.spoil(torch.from_numpy(changed[name]))
        return replace(step, **changed)

    def in_batch(self, batch):
        if self.due():
            batch = {**batch, "reward": batch["reward"].clone()}
            self.spoil(batch["reward"])
        return (batch,)

    def in_gradient(self, state, found, *rest):
        if self.due():
            self.spoil(found.gradient)
        return (state, found, *rest)

    def in_state(self, action):
        if self.due():
            workflow = self.run.workflow
            moments = workflow.model.normalizer.moments
            self.spoil(
                {
                    "weight": workflow.learner.state.flat,
                    "moment": workflow.learner.state.first,
                    "statistic": torch.from_numpy(moments.mean),
                }[self.place]
            )
        return (action,)


@cache  # composing costs more than such a small run
def config_of(env):
    return resolve(tiny_config(f"{env}:ppo_defaults", *SETTINGS))


def make(root, env, policy, seed):
    config = config_of(env)
    config = replace(
        config,
        experiment=replace(config.experiment, seed=seed),
        compute=replace(config.compute, on_nonfinite=policy),
    )
    return build_run(config, lambda: RunDirectory.create(root, "tiny"), Sinks([]))[0]


def inject(root, number):
    """One run with one injection; how it ended."""
    dice = random.Random(number)
    place, policy = PLACES[number % len(PLACES)], POLICIES[number // len(PLACES) % len(POLICIES)]
    run = make(root, dice.choice(["CartPole-v1", "Pendulum-v1"]), policy, seed=number)
    try:
        moments = {"obs": 60, "reward": 60, "gradient": 14, "loss": 7}.get(place, 14)
        injection = Injection(run, place, dice.choice(VALUES), dice.randrange(moments), dice)
        try:
            assert run.run()
            ended = "finished"
        except NonFiniteError:
            ended = "stopped"
        assert injection.struck, "the test did not test anything"
        skipped, rollbacks = sum(run.guard.skipped.values()), len(run.guard.rollbacks)
        assert ended == "stopped" or skipped + rollbacks == 1, "nobody noticed"
        if policy == "raise":
            assert ended == "stopped"
        check(run, place, alive=ended == "finished")
        return f"{policy} {'skipped' if skipped else 'rolled back' if rollbacks else ended}"
    finally:
        run.close()


def check(run, place, *, alive):
    """No bad number in a buffer, in a statistic, or in a good checkpoint."""
    state = run.state()
    kept = {name: state["parts"][name] for name in state["parts"] if name.startswith("buffer")}
    kept["reward scale"] = state["workflow"]["reward_scale"]
    if alive:  # of a run that has stopped, what was spoilt by hand is still spoilt
        kept |= {"workflow": state["workflow"], "collector": state["parts"]["collector"]}
        assert run.counters.env_steps == 256
    elif place not in ("weight", "moment", "statistic"):
        kept |= {"workflow": state["workflow"]}
    assert nonfinite_paths(kept) == set()
    assert run.progress.best_score is None or np.isfinite(run.progress.best_score)
    for step in run.store.steps():
        saved = run.store.load(step)[0]
        assert nonfinite_paths({**saved, "parts": {**saved["parts"], "environment": {}}}) == set()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy on infinities, until they are found
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_bad_number_is_ever_kept(chunk):
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        ends = Counter(inject(Path(root), number) for number in range(chunk, INJECTIONS, CHUNKS))
    assert sum(ends.values()) == INJECTIONS // CHUNKS
    # every policy was tried, and each did at least once what it is for
    assert {"raise stopped", "skip skipped", "rollback rolled back"} <= set(ends)
