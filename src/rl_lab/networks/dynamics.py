"""Models of what a step does where the state is seen as it is: no latent, no memory.

From a state and an action, the change of the state and the reward: by one perceptron, or by several
that each give a Gaussian and disagree where they have seen little (PETS, Chua et al. 2018). Numbers
are scaled by statistics of the data that `calibrate` takes; they are saved with the weights.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rl_lab.core.options import Options, option
from rl_lab.core.schema import Activation
from rl_lab.core.spec import Space
from rl_lab.networks.ensemble import Ensemble
from rl_lab.networks.mlp import as_vector, linear, mlp, vector_size

LOG_STD_RANGE = (-5.0, 1.0)  # of a prediction, in units of the data's deviation
_SMALLEST_STD = 1e-6  # what varies less than this is a constant, and is not scaled


@dataclass(frozen=True, kw_only=True)
class DynamicsConfig(Options):
    """Sizes of a model of steps."""

    hidden_dims: list[int] = option([128, 128], "width of each hidden layer", low=1)
    activation: Activation = option("silu", "tanh, relu, elu, gelu or silu")
    members: int = option(5, "perceptrons of an ensemble, each with weights of its own", low=1)


class Identity(nn.Module):
    """The representation for observations that are the state: a vector, and the way back."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.space = space
        self.out_dim = vector_size(space)

    def forward(self, obs: Tensor) -> Tensor:
        """[..., *obs] to [..., out_dim]; indices as one-hot."""
        return as_vector(self.space, obs)

    def decode(self, state: Tensor) -> Tensor:
        """[..., out_dim] to [..., *obs]; of one-hot numbers the largest."""
        if not hasattr(self.space, "low"):
            sizes = getattr(self.space, "nvec", [self.out_dim])
            index = [part.argmax(-1) for part in state.split(list(sizes), -1)]
            return torch.stack(index, -1) if self.space.shape else index[0]
        return state.reshape(*state.shape[:-1], *self.space.shape)


class Scale(nn.Module):
    """Mean and deviation of some columns; until they are known, 0 and 1."""

    mean: Tensor
    std: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))

    def take(self, rows: Tensor) -> None:
        """From rows [B, size]."""
        std, mean = torch.std_mean(rows, dim=0, correction=0)
        self.mean.copy_(mean)
        self.std.copy_(torch.where(std > _SMALLEST_STD, std, 1.0))

    def forward(self, rows: Tensor) -> Tensor:
        """To mean 0 and deviation 1."""
        return (rows - self.mean) / self.std


class _Dynamics(nn.Module):
    """What both models share: the units of their inputs and outputs."""

    def __init__(self, state_dim: int, action_dim: int) -> None:
        super().__init__()
        self.state_dim = state_dim
        self.inputs, self.outputs = Scale(state_dim + action_dim), Scale(state_dim + 1)

    @torch.no_grad()
    def calibrate(self, state: Tensor, action: Tensor, next_state: Tensor, reward: Tensor) -> None:
        """Take the units of rows [B, …]."""
        self.inputs.take(torch.cat([state, action], -1))
        self.outputs.take(change(state, next_state, reward))

    def _read(self, state: Tensor, action: Tensor) -> Tensor:
        return self.inputs(torch.cat([state, action], -1))

    def _moved(self, state: Tensor, scaled: Tensor) -> tuple[Tensor, Tensor]:
        """The next state and the reward that an output in its own units means."""
        raw = self.outputs.mean + self.outputs.std * scaled
        return state + raw[..., : self.state_dim], raw[..., self.state_dim]


class MLPDynamics(_Dynamics):
    """One perceptron, sure of itself."""

    def __init__(self, config: DynamicsConfig, state_dim: int, action_dim: int) -> None:
        super().__init__(state_dim, action_dim)
        hidden: Sequence[int] = config.hidden_dims
        self.layers = mlp(state_dim + action_dim, hidden, config.activation)
        self.output = linear([state_dim + action_dim, *hidden][-1], state_dim + 1, 1.0)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """The change and the reward [..., S + 1], in the units of the data."""
        return self.output(self.layers(self._read(state, action)))

    def imagine_step(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """The next state [..., S] and the reward [...] of arriving there."""
        return self._moved(state, self(state, action))


class GaussianEnsemble(_Dynamics):
    """Several perceptrons side by side, each of which gives a mean and a deviation."""

    def __init__(self, config: DynamicsConfig, state_dim: int, action_dim: int) -> None:
        super().__init__(state_dim, action_dim)
        inputs, outputs = state_dim + action_dim, 2 * (state_dim + 1)
        self.members = config.members
        self.layers = Ensemble(
            config.members, inputs, config.hidden_dims, outputs, config.activation
        )

    def forward(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-deviation [N, B, S + 1] of each member, in the units of the data.

        Rows [B, …] are the same for all members; [N, B, …] are each member's own.
        """
        x = self._read(state, action)
        raw = self.layers(x) if x.dim() == 2 else self._each_its_own(x)
        mean, spread = raw.chunk(2, -1)
        low, high = LOG_STD_RANGE
        return mean, low + (high - low) * spread.sigmoid()

    def imagine_step(self, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Every member goes its own way: states [R, N, S], one action [R, A], noise [R, N, S + 1].

        The next states, and the reward [R] that the members expect on average.
        """
        actions = action.unsqueeze(0).expand(self.members, *action.shape)
        mean, log_std = self(state.transpose(0, 1), actions)
        drawn = (mean + log_std.exp() * noise.transpose(0, 1)).transpose(0, 1)
        next_state, reward = self._moved(state, drawn)
        return next_state, reward.mean(1)

    def every(self, state: Tensor) -> Tensor:
        """One state [B, S] as each member's own [B, N, S]: where `imagine_step` begins."""
        return state.unsqueeze(1).expand(-1, self.members, -1)

    def disagreement(self, state: Tensor, action: Tensor) -> Tensor:
        """How far the members' means lie apart [B]: what is not known, rather than what is random.

        The deviation over members, averaged over the outputs.
        """
        return self(state, action)[0].std(0, correction=0).mean(-1)

    def _each_its_own(self, x: Tensor) -> Tensor:
        layers, last = self.layers, len(self.layers.weights) - 1
        for index, (weight, bias) in enumerate(zip(layers.weights, layers.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            x = x if index == last else layers.activation(x)
        return x


def change(state: Tensor, next_state: Tensor, reward: Tensor) -> Tensor:
    """What a step did, [..., S + 1]: the change of the state, and the reward."""
    return torch.cat([next_state - state, reward.unsqueeze(-1)], -1)


def nll(mean: Tensor, log_std: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Negative log-likelihood of targets [B, D] under each member's Gaussian [N, B, D].

    A mean over rows and a sum over members: each learns as if it were alone. `weight` [N, B] says
    how often a member sees a row, for members that are to learn from samples of their own.
    """
    error = (target - mean) / log_std.exp()
    each = (0.5 * error.square() + log_std + 0.5 * math.log(2 * math.pi)).sum(-1)
    return (each if weight is None else each * weight).mean(-1).sum()


def dynamics_loss(
    model: MLPDynamics | GaussianEnsemble,
    state: Tensor,
    action: Tensor,
    next_state: Tensor,
    reward: Tensor,
    weight: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Negative log-likelihood of an ensemble, or half the squared error of a perceptron."""
    target = model.outputs(change(state, next_state, reward))
    if isinstance(model, MLPDynamics):
        error: Tensor = model(state, action) - target
        loss = 0.5 * error.square().sum(-1).mean()
    else:
        mean, log_std = model(state, action)
        error = mean - target
        loss = nll(mean, log_std, target, weight)
    return loss, {"model_error": error.detach().square().mean().sqrt()}, {}
