"""The state-space model: episodes do not leak, sequences are steps, latents and KL by hand."""

import math

import pytest
import torch

from rl_lab.algorithms.dreamer.rssm import GRU, RSSM, BlockGRU, BlockLinear, RSSMShape, mixed

SHAPE = {
    "deter": 8,
    "hidden": 6,
    "stoch": 3,
    "layers": 1,
    "min_std": 0.1,
    "activation": "silu",
}
KINDS = {
    "gaussian": {"classes": 0, "blocks": 1, "unimix": 0.0, "norm": "none"},
    "categorical": {"classes": 4, "blocks": 1, "unimix": 0.0, "norm": "layer"},
    "blocks": {"classes": 4, "blocks": 2, "unimix": 0.01, "norm": "rms"},
}
ACTIONS, EMBED = 2, 5
every_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind: str, **more) -> RSSM:
    torch.manual_seed(0)
    return RSSM(RSSMShape(**{**SHAPE, **KINDS[kind], **more}), ACTIONS, EMBED)


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(rssm: RSSM, length: int, batch: int, seed: int = 0):
    """Actions, embeddings, resets and noise [T, B, …]; no reset."""
    rng = stream(seed)
    return (
        torch.randn(length, batch, ACTIONS, generator=rng),
        torch.randn(length, batch, EMBED, generator=rng),
        torch.zeros(length, batch, dtype=torch.bool),
        rssm.noise((length, batch), rng),
    )


def some_state(rssm: RSSM, batch: int):
    """Not the one that episodes begin with."""
    rng = stream(9)
    zero = rssm.initial(batch)
    return {key: torch.randn(each.shape, generator=rng) for key, each in zero.items()}


# -- episodes do not leak --------------------------------------------------------------------------


@every_kind
def test_after_a_reset_it_is_as_if_nothing_had_been_before(kind):
    """[tail of one episode, first frame, head of the next] == [first frame, head], bit for bit."""
    rssm = make(kind)
    action, embed, reset, noise = rows(rssm, 7, 2)
    reset[3] = True
    whole = rssm.observe_sequence(some_state(rssm, 2), action, embed, reset, noise)
    head = rssm.observe_sequence(rssm.initial(2), action[3:], embed[3:], reset[3:], noise[3:])
    for key in ("deter", "stoch"):
        assert torch.equal(whole[0][key][3:], head[0][key])
    assert torch.equal(whole[1][3:], head[1])
    torch.testing.assert_close(whole[2][3:], head[2])  # one matrix product of other size


@every_kind
def test_a_reset_of_one_environment_is_not_one_of_its_neighbour(kind):
    rssm = make(kind)
    action, embed, reset, noise = rows(rssm, 5, 2)
    without = rssm.observe_sequence(some_state(rssm, 2), action, embed, reset, noise)[0]
    reset[2, 0] = True
    found = rssm.observe_sequence(some_state(rssm, 2), action, embed, reset, noise)[0]
    assert not torch.allclose(found["deter"][2:, 0], without["deter"][2:, 0])
    assert torch.equal(found["deter"][:, 1], without["deter"][:, 1])


@every_kind
def test_the_action_before_a_reset_is_forgotten_too(kind):
    rssm = make(kind)
    action, embed, reset, noise = rows(rssm, 2, 2)
    reset[1] = True
    first = rssm.observe_sequence(rssm.initial(2), action, embed, reset, noise)[0]
    action = action.clone()
    action[1] += 5.0
    second = rssm.observe_sequence(rssm.initial(2), action, embed, reset, noise)[0]
    assert torch.equal(first["deter"], second["deter"])
    reset[1] = False  # without the reset it does count
    third = rssm.observe_sequence(rssm.initial(2), action, embed, reset, noise)[0]
    assert not torch.allclose(first["deter"][1], third["deter"][1])


@every_kind
def test_no_gradient_reaches_the_episode_before(kind):
    rssm = make(kind)
    action, embed, reset, noise = rows(rssm, 6, 2)
    reset[3] = True
    action.requires_grad_()
    embed.requires_grad_()
    states, posterior, prior = rssm.observe_sequence(
        some_state(rssm, 2), action, embed, reset, noise
    )
    later = rssm.features(states)[3:].square().sum() + posterior[3:].square().sum()
    by_action, by_embed = torch.autograd.grad(later + prior[3:].square().sum(), (action, embed))
    assert not by_embed[:3].any()
    assert by_embed[3:].any()
    assert not by_action[:4].any()  # the action of the first frame included
    assert by_action[4:].any()


# -- time ------------------------------------------------------------------------------------------


@every_kind
def test_a_sequence_is_repeated_steps(kind):
    rssm = make(kind)
    action, embed, reset, noise = rows(rssm, 6, 3)
    reset[2, 0] = reset[4, 1] = True
    state = some_state(rssm, 3)
    states, posterior, prior = rssm.observe_sequence(state, action, embed, reset, noise)
    assert states["deter"].shape == (6, 3, 8)
    for t in range(6):
        state, here = rssm.observe(state, action[t], embed[t], reset[t], noise[t])
        assert torch.equal(state["deter"], states["deter"][t])
        assert torch.equal(state["stoch"], states["stoch"][t])
        assert torch.equal(here, posterior[t])
        torch.testing.assert_close(rssm.prior(state["deter"]), prior[t])


@every_kind
def test_an_imagined_step_is_an_observed_one_whose_frame_is_the_prior(kind):
    """The memory is the same; the latent is drawn from the prior of that memory."""
    rssm = make(kind)
    action, embed, reset, noise = rows(rssm, 1, 3)
    before = some_state(rssm, 3)
    observed, _ = rssm.observe(before, action[0], embed[0], reset[0], noise[0])
    imagined = rssm.imagine_step(before, action[0], noise[0])
    assert torch.equal(imagined["deter"], observed["deter"])
    assert torch.equal(imagined["stoch"], rssm.draw(rssm.prior(observed["deter"]), noise[0]))
    assert not torch.equal(imagined["stoch"], observed["stoch"])


@every_kind
def test_the_prior_does_not_see_its_own_frame(kind):
    rssm = make(kind)
    action, embed, reset, noise = rows(rssm, 4, 1)
    embed.requires_grad_()
    prior = rssm.observe_sequence(rssm.initial(1), action, embed, reset, noise)[2]
    gradient = torch.autograd.grad(prior[2].square().sum(), embed)[0]
    assert not gradient[2:].any()
    assert gradient[:2].any()


@every_kind
def test_without_noise_the_likeliest_latent_is_taken(kind):
    rssm = make(kind)
    action, embed, reset, _ = rows(rssm, 1, 3)
    state, posterior = rssm.observe(rssm.initial(3), action[0], embed[0], reset[0], None)
    assert torch.equal(state["stoch"], rssm.mode(posterior))
    assert rssm.features(state).shape == (3, rssm.feature_dim)


# -- the memory ------------------------------------------------------------------------------------


def shape(**more) -> RSSMShape:
    return RSSMShape(**{**SHAPE, **KINDS["blocks"], **more})


def test_a_gru_by_hand():
    """One unit, one input that enters as it is; columns of the matrix: memory first, then input."""
    cell = GRU(shape(deter=1, hidden=1, blocks=1, norm="none"), 1, 1)
    cell.enter = torch.nn.Linear(2, 1)
    with torch.no_grad():
        cell.enter.weight.copy_(torch.tensor([[1.0, 2.0]]))
        cell.enter.bias.zero_()
        cell.gates.weight.copy_(torch.tensor([[0.1, 0.4], [0.2, 0.5], [0.3, 0.6]]))
        cell.gates.bias.copy_(torch.tensor([0.01, 0.02, 0.03]))
    found = cell(*(torch.tensor([[each]]) for each in (-1.0, 1.0, 0.5)))  # 1 + 2 · .5 enters
    reset = 1 / (1 + math.exp(-(-0.1 + 0.8 + 0.01)))
    candidate = math.tanh(reset * (-0.2 + 1.0 + 0.02))
    update = 1 / (1 + math.exp(-(-0.3 + 1.2 + 0.03 - 1)))
    assert found.item() == pytest.approx(update * candidate + (1 - update) * -1.0, rel=1e-6)


@pytest.mark.parametrize("norm", ["none", "layer", "rms"])
def test_gates_are_normalized_by_the_norm_that_was_asked_for(norm):
    expected = {"none": "Identity", "layer": "LayerNorm", "rms": "RMSNorm"}[norm]
    assert type(GRU(shape(norm=norm), 12, 2).norm).__name__ == expected
    assert type(BlockGRU(shape(norm=norm), 12, 2).norm).__name__ == expected


@pytest.mark.parametrize("blocks", [2, 4])
def test_blocks_by_the_formula_of_the_paper(blocks):
    """Embeddings are repeated for each block and joined to its own part; gates lie side by side."""
    torch.manual_seed(0)
    sizes = shape(blocks=blocks)
    cell = BlockGRU(sizes, 12, 2)
    for name, each in cell.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(each)
    deter, stoch, action = torch.randn(5, 8), torch.randn(5, 12), torch.randn(5, 2)
    embedded = cell.enter_deter(deter), cell.enter_stoch(stoch), cell.enter_action(action)
    own = deter.reshape(5, blocks, -1)
    read = torch.cat([own, torch.cat(embedded, -1)[:, None].expand(-1, blocks, -1)], -1)
    shared = cell.shared.weight.reshape(blocks, 8 // blocks, -1).transpose(1, 2)
    matrix = torch.cat([cell.own.weight, shared], 1)  # [blocks, own + 3 · hidden, own]
    hidden = torch.einsum("bgi,gio->bgo", read, matrix).flatten(1) + cell.own.bias
    hidden = torch.nn.functional.silu(cell.norm(hidden))
    gates = cell.gates(hidden).reshape(5, blocks, 3, -1)
    reset, candidate, update = (gates[:, :, index].flatten(1) for index in range(3))
    update = torch.sigmoid(update - 1)
    candidate = torch.tanh(torch.sigmoid(reset) * candidate)
    expected = update * candidate + (1 - update) * deter
    torch.testing.assert_close(cell(deter, stoch, action), expected)


def test_every_block_reads_the_whole_memory():
    """The Jacobian of the memory has no block of zeros: each part is moved by each other part.

    Without a norm, through which parts of the hidden layer would know each other's size.
    """
    rssm = make("blocks", norm="none")
    state = some_state(rssm, 1)

    def remember(deter):
        return rssm.imagine_step({**state, "deter": deter}, torch.ones(1, 2), NOISE)["deter"][0]

    jacobian = torch.autograd.functional.jacobian(remember, state["deter"])[:, 0]
    parts = jacobian.reshape(2, 4, 2, 4).abs().amax((1, 3))
    assert parts.min() > 1e-4


NOISE = torch.ones(1, 3, 4)


@every_kind
def test_the_model_sees_actions_as_environments_take_them(kind):
    """Beyond ±1 they are clipped; gradients go on."""
    rssm = make(kind)
    noise, state = rssm.noise((1,), stream(1)), some_state(rssm, 1)
    wild, clipped = torch.tensor([[3.0, -0.5]]), torch.tensor([[1.0, -0.5]])
    found = rssm.imagine_step(state, wild, noise)["deter"]
    torch.testing.assert_close(found, rssm.imagine_step(state, clipped, noise)["deter"])
    wild.requires_grad_()
    moved = rssm.imagine_step(state, wild, noise)["deter"].sum()
    assert torch.autograd.grad(moved, wild)[0].abs().min() > 0


def test_a_block_linear_layer_is_a_block_diagonal_matrix():
    torch.manual_seed(0)
    layer = BlockLinear(6, 4, 2)
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(3, 6)
    torch.testing.assert_close(layer(x), x @ torch.block_diag(*layer.weight) + layer.bias)


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_fresh_memory_remembers(blocks):
    """The update gate begins near sigmoid(-1) = 0.27, not at a half."""
    cell = make("blocks", blocks=blocks, norm="none").memory
    torch.nn.init.zeros_(cell.gates.weight)
    deter = torch.randn(1, 8, generator=stream(0))
    found = cell(deter, torch.zeros(1, 12), torch.zeros(1, ACTIONS))
    torch.testing.assert_close(found, (1 - 1 / (1 + math.e)) * deter)


# -- latents ---------------------------------------------------------------------------------------


def test_categories_are_exactly_one_hot_and_gradients_are_those_of_the_chances():
    rssm = make("categorical")
    logits = torch.randn(200, 3, 4, generator=stream(1)).requires_grad_()
    stats = mixed(logits, 0.0)
    drawn = rssm.draw(stats, rssm.noise((200,), stream(2)))
    assert drawn.shape == (200, 12)
    ones = drawn.unflatten(-1, (3, 4))
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    assert bool((ones.sum(-1) == 1).all())
    weights = torch.randn(200, 12, generator=stream(3))
    straight = torch.autograd.grad((drawn * weights).sum(), logits, retain_graph=True)[0]
    probabilities = (logits.softmax(-1).flatten(-2) * weights).sum()
    torch.testing.assert_close(straight, torch.autograd.grad(probabilities, logits)[0])


def test_categories_come_as_often_as_they_should():
    """40 000 draws of (.1, .2, .3, .4): five deviations are 0.0123 at most."""
    rssm = make("categorical")
    stats = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().expand(40_000, 3, 4)
    drawn = rssm.draw(stats, rssm.noise((40_000,), stream(4))).unflatten(-1, (3, 4))
    expected = torch.tensor([0.1, 0.2, 0.3, 0.4]).expand(3, 4)
    torch.testing.assert_close(drawn.mean(0), expected, atol=0.0123, rtol=0.0)


def test_gaussian_latents_are_mean_and_deviation():
    rssm = make("gaussian")
    stats = torch.tensor([[[1.0, 2.0, 3.0], [0.5, 1.0, 2.0]]], requires_grad=True)
    noise = torch.tensor([[2.0, -1.0, 0.5]])
    drawn = rssm.draw(stats, noise)
    assert drawn.tolist() == [[2.0, 1.0, 4.0]]
    assert rssm.mode(stats).tolist() == [[1.0, 2.0, 3.0]]
    gradient = torch.autograd.grad(drawn.sum(), stats)[0]
    assert gradient.tolist() == [[[1.0, 1.0, 1.0], [2.0, -1.0, 0.5]]]


def test_deviations_have_a_floor():
    rssm = make("gaussian")
    torch.nn.init.constant_(rssm.prior_output.bias, -50.0)
    torch.nn.init.zeros_(rssm.prior_output.weight)
    assert rssm.prior(torch.zeros(1, 8))[0, 1].tolist() == pytest.approx([0.1] * 3)


def test_a_share_of_the_uniform_distribution_is_in_every_category():
    """K = 4 and 1 %: the impossible has .0025, the certain .9925."""
    logits = torch.tensor([0.0, -80.0, -80.0, -80.0])
    assert mixed(logits, 0.01).exp().tolist() == pytest.approx([0.9925, 0.0025, 0.0025, 0.0025])
    rssm = make("blocks")
    with torch.no_grad():
        rssm.prior_output.weight.mul_(1000)
        rssm.posterior_output.weight.mul_(1000)
    action, embed, reset, noise = rows(rssm, 3, 2)
    _, posterior, prior = rssm.observe_sequence(rssm.initial(2), action, embed, reset, noise)
    for stats in (posterior, prior):  # what is drawn from, and what the KL is of
        assert stats.exp().min().item() >= 0.01 / 4 - 1e-7
        torch.testing.assert_close(stats.exp().sum(-1), torch.ones(3, 2, 3))


# -- divergence ------------------------------------------------------------------------------------


def test_kl_of_categories_by_hand():
    """.5 ln(.5/.25) + .5 ln(.5/.75) = .143841; the other latent is the same, and they add up."""
    rssm = make("categorical")
    left, right = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log()
    found = rssm.kl(left.expand(1, 2, 2), right.expand(1, 2, 2))
    assert found.tolist() == pytest.approx([2 * 0.143841], abs=1e-5)
    assert rssm.kl(left.expand(1, 2, 2), left.expand(1, 2, 2)).tolist() == [0.0]


def test_kl_of_normals_by_hand():
    """N(1, 1) ‖ N(0, 2): ln 2 + (1 + 1)/8 − 1/2 = .443147; the reverse is ln ½ + (4 + 1)/2 − ½."""
    rssm = make("gaussian")
    left, right = torch.tensor([[[1.0], [1.0]]]), torch.tensor([[[0.0], [2.0]]])
    assert rssm.kl(left, right).tolist() == pytest.approx([0.443147], abs=1e-5)
    assert rssm.kl(right, left).tolist() == pytest.approx([2 - math.log(2)], abs=1e-5)
    assert rssm.kl(left.expand(1, 2, 3), right.expand(1, 2, 3)).tolist() == pytest.approx(
        [3 * 0.443147], abs=1e-5
    )


def test_noise_is_the_streams_own():
    rssm = make("categorical")
    assert torch.equal(rssm.noise((2, 3), stream(1)), rssm.noise((2, 3), stream(1)))
    assert rssm.noise((2, 3), stream(1)).shape == (2, 3, 3, 4)
    assert make("gaussian").noise((2, 3), stream(1)).shape == (2, 3, 3)
