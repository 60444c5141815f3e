"""A compiled update is the eager one: the same steps, the same refusal of bad numbers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rl_lab.core import compiled, learner
from rl_lab.core.errors import NonFiniteError
from rl_lab.core.learner import Learner
from rl_lab.core.optim import (
    AdamState,
    OptimizerConfig,
    adam,
    adam_in_place,
    bias_corrections,
)
from rl_lab.networks.mlp import Tanh

needs_compiler = pytest.mark.skipif(
    compiled.compiler() is None, reason="compiling needs a C++ compiler"
)


def assert_same(one: Any, two: Any, error: float) -> None:
    """Trees of tensors, leaf by leaf."""
    pair: list[list[Tensor]] = [[], []]
    assert compiled._flatten(one, pair[0]) == compiled._flatten(two, pair[1])
    for left, right in zip(*pair, strict=True):
        torch.testing.assert_close(left, right, rtol=error, atol=error)


class Net(nn.Module):
    """Two parts with learning rates of their own, and a buffer that moves between updates."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.tanh = nn.Linear(3, 8), nn.Linear(8, 1), Tanh()
        self.register_buffer("scale", torch.ones(3))

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.tanh(self.body(rows * self.scale)))


def regression(module: nn.Module, batch: dict[str, Tensor]) -> tuple[Any, ...]:
    error = (module(batch["rows"]) - batch["target"]).square().mean()
    return error, {"error": error}, {}


def twins(settings: dict[str, Any], special: dict[str, float]) -> list[Learner]:
    made = []
    for compile in (False, True):
        torch.manual_seed(0)
        own = OptimizerConfig(**settings)
        made.append(Learner(Net(), regression, own, compile=compile, rate_patterns=special))
    return made


def batches(count: int) -> Iterator[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        rows = torch.randn(16, 3, generator=generator)
        yield {"rows": rows, "target": torch.full((16, 1), 4.0)}


def check_updates(settings: dict[str, Any], special: dict[str, float]) -> None:
    """Three steps with a buffer that moves, then one with a loss that is not a number."""
    limit, both = torch.tensor(0.5), twins(settings, special)
    for number, batch in enumerate(batches(3)):
        results = []
        for each in both:
            each.module.scale.add_(number)
            rate = each.rates(0.01, special)
            results.append(each.step(batch, learning_rate=rate, max_grad_norm=limit)[:4])
        assert results[0][1] > 0.5  # the norm of the gradient
        assert_same(*results, error=1e-5)
        assert_same(*(each.state for each in both), error=1e-5)
    batch["target"][3] = torch.nan
    for each in both:
        assert each.state.updates == 3
        before = each.snapshot()[0]
        each.step(batch, learning_rate=each.rates(0.01, special), max_grad_norm=limit)
        assert all(map(torch.equal, each.state[:4], before[:4]))
        values = torch.cat([part.detach().flatten() for part in each.module.parameters()])
        assert torch.equal(values, before.flat)
        with pytest.raises(NonFiniteError, match="no weight changed"):
            each.check("it")


UPDATES = [
    ({"name": "adamw", "weight_decay": 0.1}, {"head*": 0.03}),
    ({"name": "adamw", "weight_decay": 0.1}, {}),
    ({"name": "adam", "weight_decay": 0.1}, {"head*": 0.03}),
    ({"name": "adam", "weight_decay": 0.1}, {}),
    ({"name": "adam"}, {}),
]


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function that is compiled, called as it is."""

    class Called:
        def __init__(self, function: Any, name: str) -> None:
            self.function = function

        def given(self, *last: Any) -> Any:
            return lambda *first: self.function(*first, *last)

        def __call__(self, *arguments: Any) -> Any:
            return self.function(*arguments)

    monkeypatch.setattr(learner, "Compiled", Called)


@pytest.mark.parametrize(("settings", "special"), UPDATES)
def test_the_pure_update_is_the_eager_one(
    uncompiled: None, settings: dict[str, Any], special: dict[str, float]
) -> None:
    check_updates(settings, special)


@needs_compiler
@pytest.mark.parametrize(
    ("settings", "special"),
    [UPDATES[0], *(pytest.param(*each, marks=pytest.mark.slow) for each in UPDATES[1:])],
)
def test_the_compiled_update_is_the_eager_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    special: dict[str, float],
) -> None:
    monkeypatch.setenv(compiled.CACHE_VARIABLE, str(tmp_path))
    check_updates(settings, special)


def test_the_reported_gradient_is_the_same_too(uncompiled: None) -> None:
    (batch,) = batches(1)
    step = {"learning_rate": torch.tensor(0.01), "max_grad_norm": torch.tensor(0.5)}
    eager, pure = (each.step(batch, **step) for each in twins({}, {}))
    torch.testing.assert_close(eager.gradient.norm(), eager.grad_norm)
    torch.testing.assert_close(eager.gradient, pure.gradient)


def test_a_known_gradient_is_descended_alike(uncompiled: None) -> None:
    step = {"learning_rate": torch.tensor(0.01), "max_grad_norm": torch.tensor(0.5)}
    both = twins({}, {})
    for each in both:
        each.descend(torch.ones_like(each.state.flat), torch.tensor(1.0), **step)
        each.check("it")
    assert_same(*(each.state for each in both), error=1e-6)
    assert both[1].state.updates == 1


@pytest.mark.parametrize("place", ["flat", "first", "second"])
def test_a_bad_number_that_no_gradient_shows_is_found(uncompiled: None, place: str) -> None:
    step = {"learning_rate": torch.tensor(0.01), "max_grad_norm": torch.tensor(0.5)}
    for each in twins({}, {}):
        getattr(each.state, place)[0] = torch.nan
        each.descend(torch.ones_like(each.state.flat), torch.tensor(1.0), **step)
        with pytest.raises(NonFiniteError):
            each.check("it")


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_the_pure_step_is_the_fused_one_and_torchs(name: str, decay: float) -> None:
    config = OptimizerConfig(name=name, weight_decay=decay, eps=1e-7, beta1=0.8, beta2=0.95)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(50, generator=generator)
    theirs = nn.Parameter(start.clone())
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    reference = kind([theirs], lr=0.01, betas=(0.8, 0.95), eps=1e-7, weight_decay=decay)

    def fresh() -> AdamState:
        zeros = torch.zeros(50), torch.zeros(50), torch.zeros(())
        return AdamState(start.clone(), *zeros, torch.tensor(True))

    pure, many, fused = fresh(), fresh(), fresh()
    finite = torch.tensor(True)
    for _ in range(20):
        gradient = torch.randn(50, generator=generator)
        rate = torch.tensor(0.01)
        old, copies = pure, [each.clone() for each in pure]
        corrections = bias_corrections(pure.updates, config)
        given = {"corrections": corrections, "weight_decay": config.weight_decay}
        pure = adam(pure, gradient, finite, config, learning_rate=rate, **given)
        assert all(map(torch.equal, old, copies))  # nothing is written
        rates = rate.expand(50)
        many = adam(many, gradient, finite, config, learning_rate=rates, **given)
        theirs.grad = gradient.clone()
        reference.step()
        fused = adam_in_place(fused, gradient, finite, config, learning_rate=rate)
    for each in (many, fused):
        assert_same(each, pure, error=1e-5)
    torch.testing.assert_close(pure.flat, theirs.detach(), rtol=1e-5, atol=1e-5)
    assert pure.updates == 20 and not torch.allclose(pure.flat, start, atol=0.05)
