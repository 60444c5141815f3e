import torch
from torch import distributions as reference

from rl_lab.core.distributions import Categorical, DiagonalGaussian, MultiCategorical

LOGITS = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))


def test_categorical_equals_the_reference():
    ours, theirs = Categorical(LOGITS), reference.Categorical(logits=LOGITS)
    action = ours.sample(torch.Generator().manual_seed(1))
    assert ours.log_prob(action).shape == (5,)
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    assert torch.equal(ours.mode(), LOGITS.argmax(-1))


def test_samples_follow_the_probabilities():
    logits = torch.tensor([0.0, 1.0, 2.0]).expand(60_000, 3)
    sample = Categorical(logits).sample(torch.Generator().manual_seed(0))
    frequency = torch.bincount(sample, minlength=3) / len(sample)
    torch.testing.assert_close(frequency, logits[0].softmax(-1), atol=0.01, rtol=0)


def test_multi_categorical_sums_over_its_parts():
    nvec = (3, 4)
    ours = MultiCategorical(LOGITS, nvec)
    parts = [reference.Categorical(logits=part) for part in LOGITS.split(nvec, -1)]
    action = ours.sample(torch.Generator().manual_seed(1))
    assert action.shape == (5, 2)
    expected = sum(part.log_prob(a) for part, a in zip(parts, action.unbind(-1), strict=True))
    torch.testing.assert_close(ours.log_prob(action), expected)
    torch.testing.assert_close(ours.entropy(), sum(part.entropy() for part in parts))


def test_gaussian_sums_over_action_dimensions():
    mean, log_std = torch.randn(6, 3), torch.tensor([-1.0, 0.0, 0.5])
    ours = DiagonalGaussian(mean, log_std)
    theirs = reference.Independent(reference.Normal(mean, log_std.exp()), 1)
    action = ours.sample(torch.Generator().manual_seed(1))
    assert ours.log_prob(action).shape == ours.entropy().shape == (6,)
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    assert torch.equal(ours.mode(), mean)
