"""Every algorithm is killed three times; buffers, sum-trees and accounts of updates included."""

import pytest
from killing import check_killed

from tiny_tdmpc import tdmpc_words
from tiny_world_models import PHASES
from tiny_world_models import WORDS as WORLD_MODELS

# 4 environments; a collect call is 16 vector steps, so checkpoints (every 256 steps) fall between.
UNIT = "algorithm.rollout_steps=16"
REPLAY = ["algorithm.learning_starts=64", "algorithm.batch_size=16", "algorithm.train_every=16"]
REPLAY += ["algorithm.replay_ratio=0.07", "buffers.replay.capacity=400"]  # it wraps, and owes
SMALL_HEADS = ["network.actor.hidden_dims=[8]", "network.critic.hidden_dims=[8]"]
PRIORITIZED = ["buffers.replay.type=prioritized", "algorithm.n_step=3"]
DREAMER = [
    *(f"algorithm.{each}=8" for each in ("deter", "hidden", "units", "batch_length")),
    *("algorithm.stoch=3", "algorithm.layers=1", "algorithm.horizon=3", "algorithm.batch_size=3"),
    *("algorithm.learning_starts=64", "algorithm.train_every=16", "algorithm.replay_ratio=0.03"),
    "buffers.replay.capacity=400",
]
QUANTILE = "algorithm.distribution=quantile"
HER = ["environment.vectorization=sync", "buffers.replay.type=her"]

# A chunk has 5 actions, a collect call 16 vector steps: checkpoints fall in mid-chunk.
CHUNKS = [
    "buffers.replay={type: uniform, capacity: 400}",
    *("algorithm.collect_steps=16", "algorithm.batch_size=16", "algorithm.execution_horizon=5"),
    *("algorithm.denoiser.hidden_dim=8", "algorithm.inference_steps=3"),
    "training.phases=[{name: all, hooks: [collect, update]}]",
]

OFTEN = {
    "dqn prioritized": ["CartPole-v1:random", "algorithm.name=dqn", *REPLAY, *PRIORITIZED],
    "sac": ["Pendulum-v1:random", "algorithm.name=sac", *REPLAY, *SMALL_HEADS],
}
REST = {
    "dqn": ["CartPole-v1:random", "algorithm.name=dqn", *REPLAY, "algorithm.dueling=true"],
    "dqn frames": [
        "picture_env:Picture-v0:random",
        "algorithm.name=dqn",
        "environment.wrappers=[{id: Resize, size: 20}, {id: FrameStack, frames: 3}]",
        *("~network.encoder.hidden_dims", "network.encoder.type=nature"),
        "+network.encoder.features=8",
        *REPLAY,
    ],
    "dqn c51 noisy": [
        "CartPole-v1:random",
        "algorithm.name=dqn",
        *("algorithm.distribution=c51", "algorithm.noisy=true", "algorithm.dueling=true"),
        *REPLAY,
        *PRIORITIZED,
    ],
    "dqn quantile": ["CartPole-v1:random", "algorithm.name=dqn", *REPLAY, QUANTILE],
    "r2d2": [
        *("CartPole-v1:random", "algorithm.name=r2d2", "algorithm.batch_length=14"),
        *("network.memory.hidden_dim=8", *REPLAY),
    ],
    "dqn her": ["PointGoalDiscrete-v0:random", "algorithm.name=dqn", *REPLAY, *HER],
    "sac gsde droq": [
        "Pendulum-v1:random",
        "algorithm.name=sac",
        *("algorithm.policy=gsde", "algorithm.critic_dropout=0.1", "algorithm.critic_norm=true"),
        *REPLAY,
        *SMALL_HEADS,
    ],
    "sac flow": [
        "Pendulum-v1:random",
        "algorithm.name=sac",
        "algorithm.policy=flow",
        *REPLAY,
        *SMALL_HEADS,
    ],
    "sac discrete": ["CartPole-v1:random", "algorithm.name=sac", *REPLAY, *SMALL_HEADS],
    "sac her": ["PointGoal-v0:random", "algorithm.name=sac", *REPLAY, *SMALL_HEADS, *HER],
    "sac observed": [
        "Pendulum-v1:random",
        "algorithm.name=sac",
        "environment.normalize_obs=true",
        *REPLAY,
        *SMALL_HEADS,
        *PRIORITIZED,
    ],
    "td3": ["Pendulum-v1:random", "algorithm.name=td3", *REPLAY, *SMALL_HEADS],
    "bc": [
        "Pendulum-v1:random",
        "algorithm.name=bc",
        "algorithm.loss=gmm",
        *(
            each
            for each in CHUNKS
            if not any(word in each for word in ("horizon", "steps=3", "den"))
        ),
    ],
    "diffusion_policy": [
        "Pendulum-v1:random",
        "algorithm.name=diffusion_policy",
        "algorithm.sampler=ddpm",
        *CHUNKS,
    ],
    "flow_policy": ["Pendulum-v1:random", "algorithm.name=flow_policy", *CHUNKS],
    "sql": ["MultiGoal-v0:random", "algorithm.name=sql", *REPLAY, *SMALL_HEADS],
    "reinforce": [
        "CartPole-v1:random",
        "algorithm.name=reinforce",
        UNIT,
        "algorithm.batch_steps=150",
        "algorithm.policy_targets=advantages",
    ],
    "q_learning": [
        "FrozenLake-v1:random",
        "algorithm.name=q_learning",
        UNIT,
        "algorithm.double=true",
    ],
    "sarsa": ["FrozenLake-v1:random", "algorithm.name=sarsa", UNIT],
    **{
        name: ["Bandit-v0:random", f"algorithm.name={name}", UNIT]
        for name in ("epsilon_greedy", "ucb", "gradient_bandit", "thompson")
    },
}
DREAMERS = {
    "v1": ["Pendulum-v1:random", "algorithm.name=dreamer_v1", *DREAMER],
    "v2": ["CartPole-v1:random", "algorithm.name=dreamer_v2", *DREAMER],
    "v3": ["CartPole-v1:random", "algorithm.name=dreamer_v3", *DREAMER],
    "planet": [
        "Pendulum-v1:random",
        "algorithm.name=planet",
        *(each for each in DREAMER if "horizon" not in each),
        *("algorithm.planner.horizon=3", "algorithm.planner.candidates=8"),
        "algorithm.planner.elites=3",
    ],
}
SLOWLY = {"learning_starts": 64, "train_every": 16, "replay_ratio": 0.07}
TDMPC = {
    "tdmpc": ["Pendulum-v1:random", *tdmpc_words("tdmpc", **SLOWLY, **{"planner.ramp": 300})],
    "tdmpc2": ["Pendulum-v1:random", *tdmpc_words("tdmpc2", **SLOWLY)],
    "tdmpc2 discrete": ["CartPole-v1:random", *tdmpc_words("tdmpc2", **SLOWLY)],
}
ROUNDS = [*WORLD_MODELS, PHASES, "training.total_timesteps=4096", "checkpoint.every_steps=64"]
ROUNDS += ["algorithm.train_every=10", "environment.max_episode_steps=15"]


@pytest.mark.parametrize("words", OFTEN.values(), ids=OFTEN)
def test_killed_three_times(tmp_path, words):
    check_killed(tmp_path, *words)


@pytest.mark.slow
@pytest.mark.parametrize("words", REST.values(), ids=REST)
def test_killed_three_times_everywhere(tmp_path, words):
    check_killed(tmp_path, *words)


@pytest.mark.slow
@pytest.mark.parametrize("words", DREAMERS.values(), ids=DREAMERS)
def test_dreamers_are_killed_three_times(tmp_path, words):
    """A cycle has three hooks: between the updates, at once, and after the next checkpoint."""
    check_killed(tmp_path, *words, kills=(17, 1, 14))


@pytest.mark.slow
@pytest.mark.parametrize("words", TDMPC.values(), ids=TDMPC)
def test_planners_are_killed_three_times(tmp_path, words):
    """In the burst at the beginning of learning, at once, and in mid-episode."""
    check_killed(tmp_path, *words)


@pytest.mark.needs("cma")
@pytest.mark.slow
@pytest.mark.parametrize("fitness", ["env", "dream"])
def test_rounds_of_world_models_are_killed_three_times(tmp_path, fitness):
    """In M, at once, and in a generation of the second round."""
    check_killed(tmp_path, *ROUNDS, f"algorithm.fitness={fitness}", kills=(8, 1, 22))
