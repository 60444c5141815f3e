"""PPO on CartPole as one compiled JAX program: the contestant for which Python hardly runs at all.

Environment, rollout, credit and all minibatch steps are traced together, so that a call of the
program is one rollout and its update: several per call were measured to be no faster. CartPole is
written here in `jax.numpy`, with the numbers of Gymnasium's: nothing else could be part of the
program, so this is all that it plays.
Random numbers are drawn in blocks, and values and log-probabilities for whole rollouts: what the
loop over time does not need is not in it.
"""

import math
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from benchmarks.peers.settings import EPISODES, JUDGED, Clock, Job, Settings, Timed

OBSERVED, ACTIONS, LIMIT = 4, 2, 500
GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
FARTHEST, STEEPEST = 2.4, 12 * 2 * np.pi / 360
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-5

Layers = list[tuple[Array, Array]]  # weights and biases
Nets = dict[str, Layers]


class Adam(NamedTuple):
    """All weights in one vector, as that makes one operation of each line below."""

    weights: Array
    mean: Array
    square: Array
    count: Array  # gradient steps so far


class World(NamedTuple):
    """N carts, and how long each episode has lasted."""

    carts: Array  # [N, 4]
    age: Array  # [N]


class State(NamedTuple):
    """Everything that a rollout and its update change."""

    adam: Adam
    world: World
    key: Array


class Rows(NamedTuple):
    """Transitions, [T, N, …]."""

    obs: Array
    action: Array
    next_obs: Array
    terminated: Array
    done: Array
    age: Array  # steps of the episode so far


def sizes(hidden: int) -> dict[str, tuple[int, ...]]:
    """The widths of each network, from the observation on."""
    return {"actor": (OBSERVED, hidden, hidden, ACTIONS), "critic": (OBSERVED, hidden, hidden, 1)}


def first_weights(rng: np.random.Generator, hidden: int) -> Array:
    """Orthogonal weights, no biases. In numpy: not worth a compilation."""
    found: list[NDArray[Any]] = []
    for name, widths in sizes(hidden).items():
        gains = [2**0.5] * (len(widths) - 2) + [0.01 if name == "actor" else 1.0]
        for gain, inputs, outputs in zip(gains, widths[:-1], widths[1:], strict=True):
            basis, upper = np.linalg.qr(rng.standard_normal(sorted((inputs, outputs))[::-1]))
            basis = gain * basis * np.sign(np.diag(upper))
            found += [basis if inputs >= outputs else basis.T, np.zeros(outputs)]
    return jnp.asarray(np.concatenate([each.ravel() for each in found]), jnp.float32)


def networks(weights: Array, hidden: int) -> Nets:
    """The vector of all weights as layers."""
    nets: Nets = {}
    start = 0
    for name, widths in sizes(hidden).items():
        nets[name] = []
        for inputs, outputs in pairwise(widths):
            middle, end = start + inputs * outputs, start + (inputs + 1) * outputs
            matrix = weights[start:middle].reshape(inputs, outputs)
            nets[name].append((matrix, weights[middle:end]))
            start = end
    return nets


def forward(net: Layers, x: Array) -> Array:
    """Tanh between the layers."""
    for weights, biases in net[:-1]:
        x = jnp.tanh(x @ weights + biases)
    weights, biases = net[-1]
    return x @ weights + biases


def first_carts(uniform: Array) -> Array:
    """Where episodes begin."""
    return 0.1 * uniform - 0.05


def physics(carts: Array, action: Array) -> tuple[Array, Array]:
    """One step of every cart [N, 4], and which of them fell or left."""
    x, speed, angle, turning = carts[:, 0], carts[:, 1], carts[:, 2], carts[:, 3]
    force = jnp.where(action == 1, FORCE, -FORCE)
    sine, cosine, mass = jnp.sin(angle), jnp.cos(angle), CART + POLE
    push = (force + POLE * HALF_LENGTH * turning**2 * sine) / mass
    lever = HALF_LENGTH * (4.0 / 3.0 - POLE * cosine**2 / mass)
    turning_gain = (GRAVITY * sine - cosine * push) / lever
    speed_gain = push - POLE * HALF_LENGTH * turning_gain * cosine / mass
    following = jnp.stack(
        (
            x + SECONDS * speed,
            speed + SECONDS * speed_gain,
            angle + SECONDS * turning,
            turning + SECONDS * turning_gain,
        ),
        axis=-1,
    )
    return following, (jnp.abs(following[:, 0]) > FARTHEST) | (jnp.abs(following[:, 2]) > STEEPEST)


def step(world: World, action: Array, fresh: Array) -> tuple[World, Rows]:
    """One step of all episodes; those that end begin again at `fresh`."""
    following, terminated = physics(world.carts, action)
    age = world.age + 1
    done = terminated | (age >= LIMIT)
    row = Rows(world.carts, action, following, terminated, done, age)
    return World(jnp.where(done[:, None], fresh, following), jnp.where(done, 0, age)), row


def begin(job: Job) -> State:
    """Fresh networks and episodes."""
    rng, count = np.random.default_rng(job.seed), job.values.num_envs
    weights = first_weights(rng, job.values.hidden)
    nothing = jnp.zeros_like(weights)
    carts = first_carts(jnp.asarray(rng.random((count, OBSERVED)), jnp.float32))
    return State(
        Adam(weights, nothing, nothing, jnp.zeros((), jnp.int32)),
        World(carts, jnp.zeros(count, jnp.int32)),
        jax.random.key(job.seed),
    )


@partial(jax.jit, static_argnames="values")
def program(values: Settings, state: State, left: float) -> tuple[State, Array]:
    """One rollout and its update; the returns [T, N] where an episode ended, elsewhere 0."""
    lead = (values.rollout_steps, values.num_envs)
    shapes = ((*lead, ACTIONS), (*lead, OBSERVED), (values.epochs, values.rows))
    key, own = jax.random.split(state.key)
    drawn = uniform(own, shapes)  # one generator: each one more takes a second to compile
    noise, fresh = -jnp.log(-jnp.log(drawn[0])), first_carts(drawn[1])
    orders = jnp.argsort(drawn[2], axis=-1).reshape(-1, values.batch_size)
    rate, clip = values.learning_rate * left, values.clip_range * left

    nets = networks(state.adam.weights, values.hidden)

    def act(world: World, chance: tuple[Array, Array]) -> tuple[World, Rows]:
        logits = forward(nets["actor"], world.carts)
        return step(world, jnp.argmax(logits + chance[0], axis=-1), chance[1])

    world, rows = lax.scan(act, state.world, (noise, fresh))
    data = credited(nets, rows, values)

    def descend(adam: Adam, index: Array) -> tuple[Adam, None]:
        batch = {name: each[index] for name, each in data.items()}
        gradient = jax.grad(loss)(networks(adam.weights, values.hidden), batch, values, clip)
        return moved(adam, ravel_pytree(gradient)[0], rate, values.max_grad_norm), None

    adam, _ = lax.scan(descend, state.adam, orders)
    return State(adam, world, key), rows.age * rows.done  # every step pays 1


def uniform(key: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Numbers between 0 and 1, neither of them included, in arrays of these shapes."""
    counts = [math.prod(shape) for shape in shapes]
    tiny = float(jnp.finfo(jnp.float32).tiny)
    block = jax.random.uniform(key, (sum(counts),), minval=tiny)
    parts = jnp.split(block, np.cumsum(counts)[:-1])
    return [each.reshape(shape) for each, shape in zip(parts, shapes, strict=True)]


def credited(nets: Nets, rows: Rows, values: Settings) -> dict[str, Array]:
    """GAE; a truncated episode keeps the value of its last frame. Flat: [T · N, …]."""
    value = forward(nets["critic"], rows.obs)[..., 0]
    future = forward(nets["critic"], rows.next_obs)[..., 0] * ~rows.terminated
    delta = 1.0 + values.gamma * future - value  # every step pays 1
    keep = values.gamma * values.gae_lambda * ~rows.done

    def back(carried: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        carried = row[0] + row[1] * carried
        return carried, carried

    _, advantage = lax.scan(back, jnp.zeros(values.num_envs), (delta, keep), reverse=True)
    data = {
        "obs": rows.obs,
        "action": rows.action,
        "log_prob": log_prob(forward(nets["actor"], rows.obs), rows.action),
        "advantage": advantage,
        "return": advantage + value,
    }
    return {name: each.reshape(-1, *each.shape[2:]) for name, each in data.items()}


def log_prob(logits: Array, action: Array) -> Array:
    """Of the actions that were taken."""
    chances = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(chances, action[..., None], axis=-1)[..., 0]


def loss(nets: Nets, batch: dict[str, Array], values: Settings, clip: Array) -> Array:
    """The objective of one minibatch."""
    logits = forward(nets["actor"], batch["obs"])
    ratio = jnp.exp(log_prob(logits, batch["action"]) - batch["log_prob"])
    advantage = batch["advantage"] - batch["advantage"].mean()
    advantage = advantage / (batch["advantage"].std() + 1e-8)
    limited = jnp.clip(ratio, 1 - clip, 1 + clip)
    policy_loss = -jnp.minimum(ratio * advantage, limited * advantage).mean()
    value = forward(nets["critic"], batch["obs"])[:, 0]
    value_loss = 0.5 * jnp.square(value - batch["return"]).mean()
    total = policy_loss + values.value_coefficient * value_loss
    if values.entropy_coefficient:
        chances = jax.nn.log_softmax(logits)
        total += values.entropy_coefficient * (jnp.exp(chances) * chances).sum(-1).mean()
    return total


def moved(adam: Adam, gradient: Array, rate: Array, limit: float) -> Adam:
    """One step along the gradient, which is cut to a norm of at most `limit`."""
    gradient = gradient * jnp.minimum(1.0, limit / (jnp.linalg.norm(gradient) + 1e-6))
    mean = BETA1 * adam.mean + (1 - BETA1) * gradient
    square = BETA2 * adam.square + (1 - BETA2) * gradient**2
    count = adam.count + 1
    first, second = 1 - BETA1**count, 1 - BETA2**count
    change = (mean / first) / (jnp.sqrt(square / second) + EPSILON)
    return Adam(adam.weights - rate * change, mean, square, count)


def greedy_return(actor: Layers, carts: Array) -> Array:
    """The mean return of one greedy episode from each of these beginnings."""
    start = World(carts, jnp.zeros(len(carts), jnp.int32))

    def going_on(carry: tuple[World, Array]) -> Array:
        return jnp.any(carry[1])

    def play(carry: tuple[World, Array]) -> tuple[World, Array]:
        world, alive = carry
        carts, fallen = physics(world.carts, jnp.argmax(forward(actor, world.carts), axis=-1))
        age = world.age + alive
        return World(carts, age), alive & ~fallen & (age < LIMIT)

    ended, _ = lax.while_loop(going_on, play, (start, jnp.ones(len(carts), bool)))
    return ended.age.mean()


evaluated = jax.jit(greedy_return)


def train(job: Job) -> Timed:
    """The whole training, one call of the program per rollout."""
    clock, values = Clock(job), job.values
    state = begin(job)
    returns: deque[float] = deque(maxlen=EPISODES)
    tests = np.random.default_rng((job.seed, 1))

    def evaluate() -> float:
        carts = first_carts(tests.random((JUDGED, OBSERVED), np.float32))
        return float(evaluated(networks(state.adam.weights, values.hidden)["actor"], carts))

    for rollout in range(job.rollouts):
        left = 1.0 - rollout / job.rollouts if values.decay else 1.0
        state, found = program(values, state, left)
        lasted = np.asarray(found)
        returns.extend(lasted[lasted > 0].tolist())
        clock.rollout_done(returns)
        if clock.reached(evaluate):
            break
    return clock.result(returns)
