"""The actor-critic: normalizer → encoder → memory → heads, with one torso or two."""

from typing import NamedTuple, cast

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from rl_lab.core import registry
from rl_lab.core.batch import ACTION_MASK, LOG_PROB, Obs
from rl_lab.core.distributions import (
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    action_noise,
    masked,
)
from rl_lab.core.errors import UserError
from rl_lab.core.protocols import Policy
from rl_lab.core.schema import HeadConfig, NetworkConfig
from rl_lab.core.spec import Dict, Discrete, EnvSpec, MultiDiscrete, Observation, Space
from rl_lab.core.tree import picked
from rl_lab.networks.cnn import is_image
from rl_lab.networks.encoder import make_encoder
from rl_lab.networks.memory.episodes import with_last_frames
from rl_lab.networks.memory.recurrent import sequences
from rl_lab.networks.mlp import as_vector, linear, mlp, vector_size
from rl_lab.networks.normalizer import NormalizeObs, make_normalizer

_IMAGES_AT_ONCE = 1024  # rows of a rollout that are encoded at once
State = dict[str, dict[str, Tensor]]  # torso -> its memory's state; empty without a memory


class Torso(nn.Module):
    """Encoder and memory."""

    def __init__(self, config: NetworkConfig, observation: Observation) -> None:
        super().__init__()
        self.encoder = make_encoder(config.encoder, observation)
        self.memory = registry.of("memory", config.memory)(config.memory, self.encoder.out_dim)
        self.out_dim: int = self.memory.out_dim

    def step(self, obs: Obs, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """One time step [N, …]."""
        features, state = self.memory.step(self.encoder(obs), state)
        return features, state


class PolicyHead(nn.Module):
    """Features to a distribution over the action space."""

    def __init__(self, config: HeadConfig, in_dim: int, action: Space, log_std: float) -> None:
        super().__init__()
        if not isinstance(action, Discrete) and len(action.shape) != 1:
            raise UserError(f"actions of shape {action.shape} are not supported: flatten them")
        self.action = action
        self.hidden = mlp(in_dim, config.hidden_dims, config.activation)
        width = [in_dim, *config.hidden_dims][-1]
        # A small last layer: the first policy is close to uniform whatever the features are.
        if isinstance(action, Discrete):
            self.output = linear(width, action.n, gain=0.01)
        elif isinstance(action, MultiDiscrete):
            self.output = linear(width, sum(action.nvec), gain=0.01)
        else:
            self.output = linear(width, action.size, gain=0.01)
            self.log_std = nn.Parameter(torch.full((action.size,), log_std))

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Distribution:
        """[..., D] to a distribution with batch shape [...]; `mask` is 0 where it must not go."""
        raw = self.output(self.hidden(features))
        if mask is not None:
            raw = masked(raw, mask)
        if isinstance(self.action, Discrete):
            return Categorical(raw)
        if isinstance(self.action, MultiDiscrete):
            return MultiCategorical(raw, self.action.nvec)
        return DiagonalGaussian(raw, self.log_std)


class Unrolled(NamedTuple):
    """What the learner's first pass over a rollout gives. Tensors are [T, N]."""

    log_prob: Tensor
    value: Tensor
    next_value: Tensor  # V of where each step really ended; meaningless where it terminated
    states: list[State]  # memory state at the start of every chunk


class ActorCritic(nn.Module):
    """Policy and value function of one observation space and one action space."""

    def __init__(
        self,
        config: NetworkConfig,
        spec: EnvSpec,
        normalize_obs: NormalizeObs = "off",
        *,
        reconstructs: bool = False,
    ) -> None:
        super().__init__()
        self.has_memory = config.memory.type != "none"
        self.is_masked = check_mask(spec)
        self.sees_images = _sees_images(spec.observation)
        self.normalizer = make_normalizer(normalize_obs, spec.observation)
        roles = ("shared",) if config.shared_torso else ("actor", "critic")
        torsos = nn.ModuleDict({role: Torso(config, spec.observation) for role in roles})
        self.torsos = cast(dict[str, Torso], torsos)  # for type checkers
        self.actor_torso, self.critic_torso = roles[0], roles[-1]
        width = self.torsos[self.actor_torso].out_dim
        self.actor = PolicyHead(config.actor, width, spec.action, config.log_std_init)
        self.critic_hidden = mlp(width, config.critic.hidden_dims, config.critic.activation)
        self.critic = linear([width, *config.critic.hidden_dims][-1], 1, gain=1.0)
        self.space = spec.observation
        decoders = roles if reconstructs else ()
        size = picture_size(spec.observation)
        self.decoders = nn.ModuleDict({role: linear(width, size, 1.0) for role in decoders})

    def initial_state(self, batch: int) -> State:
        """What every memory starts an episode with."""
        if not self.has_memory:
            return {}
        return {role: torso.memory.initial_state(batch) for role, torso in self.torsos.items()}

    def policy_step(self, obs: Obs, state: State) -> tuple[Distribution, State]:
        """The distribution for N environments, and all memories one step further."""
        mask, obs = self._mask(obs), self.normalizer(obs)
        if not self.has_memory:
            return self.actor(self.torsos[self.actor_torso].encoder(obs), mask), state
        steps = {role: torso.step(obs, state[role]) for role, torso in self.torsos.items()}
        new_state = {role: moved for role, (_, moved) in steps.items()}
        return self.actor(steps[self.actor_torso][0], mask), new_state

    def policy_and_value(self, obs: Obs, state: State) -> tuple[Distribution, Tensor]:
        """The distribution and the value of one time step [N, …]; memories stay as they are."""
        if not self.has_memory:
            policy, value, _ = self(obs, state, None)
            return policy, value
        mask, obs = self._mask(obs), self.normalizer(obs)
        features = {role: torso.step(obs, state[role])[0] for role, torso in self.torsos.items()}
        policy = self.actor(features[self.actor_torso], mask)
        return policy, self._value(features[self.critic_torso])

    def pure_policy(self, num_envs: int, generator: Generator) -> Policy | None:
        """The policy as a pure function; with a memory it would have to carry its state along."""
        if self.has_memory:
            return None
        weights = dict(self.named_parameters()) | dict(self.named_buffers())
        space = self.actor.action

        def noise(steps: int) -> Tensor:
            return action_noise(space, (steps, num_envs), generator)

        return Policy(self.decide, weights, noise)

    def decide(
        self, weights: dict[str, Tensor], obs: Obs, noise: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The action that the random numbers choose. Everything it reads is an argument."""
        policy, *_ = functional_call(self, weights, (obs, self.initial_state(0), None))
        action = policy.pick(noise)
        return action, {LOG_PROB: policy.log_prob(action)}

    def forward(
        self, obs: Obs, state: State, resets: Tensor | None
    ) -> tuple[Distribution, Tensor, Tensor | None]:
        """Distribution, value and reconstruction loss of sequences [T, N, …], or of rows [B, …].

        The loss is half the squared error of what the decoders make of the features; None without
        decoders.
        """
        mask, obs = self._mask(obs), self.normalizer(obs)
        features = {role: torso.encoder(obs) for role, torso in self.torsos.items()}
        if self.has_memory:
            assert resets is not None, "sequences need to know where episodes begin"
            memories = [torso.memory for torso in self.torsos.values()]
            states = [state[role] for role in features]
            found = sequences(memories, list(features.values()), states, resets)
            features = {role: each for role, (each, _) in zip(features, found, strict=True)}
        policy = self.actor(features[self.actor_torso], mask)
        value = self._value(features[self.critic_torso])
        if not self.decoders:
            return policy, value, None
        seen = as_picture(self.space, obs)
        errors = [(decode(features[role]) - seen) for role, decode in self.decoders.items()]
        return policy, value, 0.5 * torch.stack(errors).square().mean()

    def unroll(
        self,
        obs: Obs,
        action: Tensor,
        next_obs: Obs,
        state: State,
        resets: Tensor,
        ended: Tensor,
        chunk: int,
    ) -> Unrolled:
        """Log-probs, values and bootstraps of a rollout [T, N, …], as the learner sees it now."""
        # Inside an episode the next row's value is the bootstrap; elsewhere a frame is left.
        left = ended.clone()
        left[-1] = True
        # Images are encoded in pieces: as floats they need four times their memory.
        size = max(_IMAGES_AT_ONCE // resets.shape[1], 1) if self.sees_images else len(resets)
        spans = [slice(at, at + size) for at in range(0, len(resets), size)]
        states = [state]
        if self.has_memory:
            features, last_features, states = self._remember(
                obs, picked(next_obs, left), state, resets, left, chunk, spans
            )
            log_prob = self.actor(features[self.actor_torso], self._mask(obs)).log_prob(action)
            value = self._value(features[self.critic_torso])
            last_value = self._value(last_features[self.critic_torso])
        else:
            log_probs, values = [], []
            for span in spans:
                policy, part, _ = self(picked(obs, span), state, None)
                log_probs.append(policy.log_prob(action[span]))
                values.append(part)
            log_prob, value = torch.cat(log_probs), torch.cat(values)
            frames = self.normalizer(picked(next_obs, left))
            last_value = self._value(self.torsos[self.critic_torso].encoder(frames))
        next_value = torch.cat([value[1:], value[-1:]])
        next_value[left] = last_value
        return Unrolled(log_prob, value, next_value, states)

    def _remember(
        self,
        obs: Obs,
        last: Obs,
        state: State,
        resets: Tensor,
        left: Tensor,
        chunk: int,
        spans: list[slice],
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], list[State]]:
        """Features of `obs` and of the `last` frames behind the steps `left`; states by chunk."""
        features, last_features = {}, {}
        states: list[State] = [{} for _ in range(0, len(resets), chunk)]
        counts = [int(part.sum()) for part in left.split(chunk)]
        for role, torso in self.torsos.items():
            x = torch.cat([torso.encoder(self.normalizer(picked(obs, span))) for span in spans])
            ends = torso.encoder(self.normalizer(last)).split(counts)
            parts = zip(x.split(chunk), ends, resets.split(chunk), left.split(chunk), strict=True)
            at, outputs = state[role], []
            for (inputs, end, begins, leaves), found in zip(parts, states, strict=True):
                found[role] = at
                *output, at = with_last_frames(torso.memory, inputs, end, at, begins, leaves)
                outputs.append(output)
            features[role], last_features[role] = map(torch.cat, zip(*outputs, strict=True))
        return features, last_features, states

    def _mask(self, obs: Obs) -> Tensor | None:
        return obs[ACTION_MASK] if self.is_masked else None

    def _value(self, features: Tensor) -> Tensor:
        value: Tensor = self.critic(self.critic_hidden(features)).squeeze(-1)
        return value


def check_mask(spec: EnvSpec) -> bool:
    """True if the observation says which actions are legal; it must do so for each of them."""
    if not isinstance(spec.observation, Dict) or ACTION_MASK not in spec.observation.parts:
        return False
    action, shape = spec.action, spec.observation.parts[ACTION_MASK].shape
    count = action.n if isinstance(action, Discrete) else sum(getattr(action, "nvec", ()))
    if shape != (count,):
        raise UserError(f"'{spec.id}' has an action_mask of shape {shape} for {count} actions")
    return True


def _shown(space: Observation) -> dict[str, Space]:
    parts = dict(space.parts) if isinstance(space, Dict) else {"": space}
    return {name: part for name, part in parts.items() if name != ACTION_MASK}


def picture_size(space: Observation) -> int:
    """How many numbers `as_picture` has."""
    return sum(vector_size(part) for part in _shown(space).values())


def as_picture(space: Observation, obs: Obs) -> Tensor:
    """An observation [..., *obs] as the numbers [..., D] to reconstruct; bytes become 0 to 1."""
    vectors = []
    for name, part in _shown(space).items():
        vector = as_vector(part, obs[name] if name else obs)
        vectors.append(vector / 255 if is_image(part) else vector)
    return torch.cat(vectors, -1)


def _sees_images(space: Observation) -> bool:
    parts = space.parts.values() if isinstance(space, Dict) else [space]
    return any(is_image(part) for part in parts)
