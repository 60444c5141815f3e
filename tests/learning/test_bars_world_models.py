"""World Models on the pixel track: the whole, and V and M by themselves. Slow: `make learn`.

On this task the return needs a memory: [z, h] earns more than z alone. It does not need a trained
one: the random weights of an untrained M remember enough for C. So two controls keep M untrained,
and M is measured where its training counts: in dreams, which teach C nothing if M is untrained, and
by its predictions. V and M are measured on driving that they have not learnt from.
"""

import math

import pytest
import torch

from rl_lab.algorithms.world_models.mdn_rnn import mixture_nll
from rl_lab.algorithms.world_models.vae import draw
from rl_lab.config.compose import compose
from rl_lab.config.resolve import resolve
from rl_lab.config.validate import validate
from rl_lab.core.batch import OBS, PREVIOUS_ACTION, RESET
from rl_lab.core.tree import picked
from rl_lab.display.sinks import Sinks
from rl_lab.networks.mlp import as_vector
from rl_lab.records.run_directory import RunDirectory
from rl_lab.run.build import build_run

pytestmark = [pytest.mark.slow, pytest.mark.needs("cma")]
SPEC = "PixelTrack-v0:world_models"
# C on z alone does not look at M: without its updates the run is the same, and shorter.
ALONE = ["algorithm.memory=false", "training.phases.2.duration_updates=1"]


def built(tmp_path, seed: int, *overrides: str, spec: str = SPEC):
    composed = compose(spec, [f"experiment.seed={seed}", "evaluation.every_steps=0", *overrides])
    config = resolve(validate(composed.tree, composed.origins))
    return build_run(config, lambda: RunDirectory.create(tmp_path, "bar"), Sinks([], None))[0]


def until(run, phase: str | None) -> None:
    while (hook := run.scheduler.next_action()) and run.scheduler.view()["name"] != phase:
        run.execute(hook)


def score(run) -> float:
    return run.evaluate("test", 100).summary()["return_mean"]


def trained(tmp_path, seed: int, *overrides: str, spec: str = SPEC) -> float:
    """The return of the policy that a whole run ends with."""
    run = built(tmp_path, seed, *overrides, spec=spec)
    until(run, None)
    found = score(run)
    run.close()
    return found


@pytest.mark.parametrize("seed", (1, 2, 3))
def test_memory_is_worth_it_and_all_of_it_beats_chance(tmp_path, seed):
    returns = {
        "both": trained(tmp_path, seed),
        "alone": trained(tmp_path, seed, *ALONE),
        "untrained": trained(tmp_path, seed, spec=f"{SPEC}_untrained"),
    }
    chance = built(tmp_path, seed, spec="PixelTrack-v0:random")
    returns["chance"] = score(chance)
    chance.close()
    assert returns["both"] >= 3 * returns["chance"], returns
    assert returns["both"] >= 1.3 * returns["alone"], returns
    assert returns["both"] >= 0.9 * returns["untrained"], returns  # training M does no harm


@pytest.mark.parametrize("seed", (1, 2, 3))
def test_dreams_need_an_m_that_has_learnt(tmp_path, seed):
    """The negative control: nothing else is different, and nothing is left of the return."""
    dreamt = trained(tmp_path, seed, spec=f"{SPEC}_dream")
    untrained = trained(tmp_path, seed, spec=f"{SPEC}_dream_untrained")
    assert dreamt >= 40.0 and dreamt >= 3 * untrained, (dreamt, untrained)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """V and M of seed 1, and windows that they have not seen."""
    folder = tmp_path_factory.mktemp("parts")
    run, other = built(folder, 1), built(folder, 77)
    until(run, "control")
    until(other, "see")
    yield run.workflow, *(each.buffers["replay"].sequences(200, 25) for each in (run, other))
    run.close()
    other.close()


@torch.no_grad()
def test_v_draws_what_it_saw(learnt):
    workflow, _, held_out = learnt
    frames = held_out[OBS][0].flatten(0, 1)[:1000]
    pixels = workflow.vae.pixels(frames)
    mean, log_var = workflow.vae.encode(frames)
    error = (workflow.vae.decode(mean) - pixels).square().sum((1, 2, 3)).mean()
    plain = (pixels - pixels.mean(0)).square().sum((1, 2, 3)).mean()
    kl = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(-1).mean()
    assert error < 0.25 * plain
    assert kl > 0.5 * mean.shape[-1]  # z says something


@torch.no_grad()
def test_m_foresees_better_than_that_nothing_changes_and_looks_at_actions(learnt):
    workflow, *windows = learnt
    rng = torch.Generator().manual_seed(0)

    def latents(batch):
        rows = picked(batch, 0)
        mean, log_var = workflow.vae.encode(rows[OBS])
        return rows, draw(mean, log_var, torch.randn(mean.shape, generator=rng))

    (seen, known), (rows, latent) = map(latents, windows)
    usual = (known[1:] - known[:-1])[~seen[RESET][1:]]
    change = (latent[1:] - latent[:-1])[~rows[RESET][1:]]
    centre, spread = usual.mean(0), usual.std(0)
    scaled = (change - centre) / spread
    persistence = (0.5 * scaled.square() + spread.log() + 0.5 * math.log(2 * math.pi)).mean()

    def nll(action):
        start = workflow.initial_state(latent.shape[1])
        output, _ = workflow.dynamics.sequence(latent[:-1], action[1:], rows[RESET][:-1], start)
        expected = workflow.dynamics.predict(output)
        return mixture_nll(expected, latent[1:])[~rows[RESET][1:]].mean()

    action = as_vector(workflow.space, rows[PREVIOUS_ACTION])
    shuffled = action[:, torch.randperm(action.shape[1], generator=rng)]
    assert nll(action) < persistence - 1.0  # nats per number of z
    assert nll(shuffled) > nll(action) + 0.1
