"""Action values with a memory: normalizer → encoder → memory → two heads that duel, or one."""

import torch
from torch import Tensor, nn

from rl_lab.core import registry
from rl_lab.core.batch import ACTION_MASK, Obs
from rl_lab.core.schema import NetworkConfig
from rl_lab.core.spec import Discrete, EnvSpec
from rl_lab.networks.actor_critic import check_mask
from rl_lab.networks.encoder import make_encoder, width_of
from rl_lab.networks.mlp import as_vector
from rl_lab.networks.normalizer import NormalizeObs, make_normalizer
from rl_lab.networks.q_network import duel, q_head

State = dict[str, Tensor]


class RecurrentQNetwork(nn.Module):
    """The value of every action [..., A] of a Discrete space, by all that an episode has shown.

    The memory sees the features of a frame and the action that led to it.
    """

    def __init__(
        self,
        config: NetworkConfig,
        spec: EnvSpec,
        normalize_obs: NormalizeObs = "off",
        *,
        dueling: bool = True,
    ) -> None:
        super().__init__()
        assert isinstance(spec.action, Discrete)
        self.action, self.actions = spec.action, spec.action.n
        self.is_masked = check_mask(spec)
        self.normalizer = make_normalizer(normalize_obs, spec.observation)
        self.encoder = make_encoder(config.encoder, spec.observation)
        features = width_of(self.encoder)
        self.memory = registry.of("memory", config.memory)(config.memory, features + self.actions)
        width = self.memory.out_dim
        self.advantage = q_head(config.critic, width, self.actions)
        self.value = q_head(config.critic, width, 1) if dueling else None

    def initial_state(self, batch: int) -> State:
        """What the memory starts an episode with."""
        state: State = self.memory.initial_state(batch)
        return state

    def step(self, obs: Obs, previous: Tensor, state: State) -> tuple[Tensor, State]:
        """Values [N, A] after one more frame, `previous` [N, A] is the last action as a vector."""
        seen = torch.cat([self.encoder(self.normalizer(obs)), previous], -1)
        features, state = self.memory.step(seen, state)
        return self._values(features), state

    def forward(
        self, obs: Obs, previous: Tensor, state: State, resets: Tensor
    ) -> tuple[Tensor, State]:
        """Values [T, N, A] along sequences, and the state after them.

        `previous` [T, N] are actions, nothing where RESET.
        """
        action = as_vector(self.action, previous) * (~resets).unsqueeze(-1)
        seen = torch.cat([self.encoder(self.normalizer(obs)), action], -1)
        features, state = self.memory.sequence(seen, state, resets)
        return self._values(features), state

    def mask(self, obs: Obs) -> Tensor | None:
        """What the observation allows [..., A], if it says so."""
        mask: Tensor | None = obs[ACTION_MASK] if self.is_masked else None
        return mask

    def _values(self, features: Tensor) -> Tensor:
        advantage: Tensor = self.advantage(features)
        return advantage if self.value is None else duel(self.value(features), advantage)


def packed(state: State) -> Tensor:
    """A memory's state as one vector for each row, [N, D]."""
    return torch.cat([each.flatten(1) for each in state.values()], -1)


def unpacked(vectors: Tensor, like: State) -> State:
    """What `packed` made of a state of the same shapes."""
    sizes = [each[0].numel() for each in like.values()]
    pairs = zip(like.items(), vectors.split(sizes, -1), strict=True)
    return {name: part.reshape(each.shape) for (name, each), part in pairs}
