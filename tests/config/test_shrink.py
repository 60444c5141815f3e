"""Runs that are small on purpose come to every phase and teach every part."""

import pytest

from rl_lab.api import configure
from rl_lab.cli.main import main
from rl_lab.config.resolve import resolve
from rl_lab.config.shrink import largest_divisor
from rl_lab.config.tree import to_tree
from rl_lab.core.state import fingerprint
from rl_lab.display.sinks import Sinks
from rl_lab.records.run_directory import RunDirectory, find_run
from rl_lab.run.build import build_run

TRACK, DREAM = "PixelTrack-v0:world_models", "PixelTrack-v0:world_models_dream"
LAB, PAPER = "+experiment=og_wm_carracing", "+experiment=CarRacing-v3/world_models_paper"
SMALL_NETWORKS = [  # what a run costs, not what it does
    *("algorithm.latent=2", "algorithm.channels=[2,4]", "algorithm.hidden=4"),
    *("algorithm.batch_size=8", "algorithm.sequences=4", "algorithm.mixtures=2"),
    *("compute.compile=off", "compute.threads=1", "environment.vectorization=sync"),
]
QUIET = ["evaluation.test_episodes=1", "logging.tensorboard=false", "logging.report=false"]


def small(spec, steps, *words):
    return configure(spec, [f"training.total_timesteps={steps}", *words], small=True)


@pytest.mark.needs("cma")
@pytest.mark.parametrize("steps", [300, 1_000, 2_000])
@pytest.mark.parametrize("spec", [TRACK, DREAM, LAB, PAPER])
def test_every_phase_comes_and_every_part_learns(tmp_path, spec, steps):
    track = ["environment.id=PixelTrack-v0", "environment.wrappers=[]", "algorithm.squash=[]"]
    words = [spec, *track] if spec in (LAB, PAPER) else []  # the same, without cars
    config, _ = small(None if words else spec, steps, *words, *SMALL_NETWORKS)
    opened = lambda: RunDirectory.create(tmp_path, "small")  # noqa: E731
    run = build_run(resolve(config), opened, Sinks([], None))[0]
    workflow, came, offline = run.workflow, [], 0
    parts = {"V": workflow.vae, "M": workflow.dynamics}
    before = {name: fingerprint(part.state_dict()) for name, part in parts.items()}
    while action := run.scheduler.next_action():
        if run.scheduler.at_cycle_start:
            came.append(run.scheduler.index)
            offline += run.scheduler.is_offline
        run.execute(action)
    run.close()
    assert set(came) == set(range(len(run.scheduler.phases)))
    assert offline <= 20 * len(run.scheduler.phases)
    assert all(fingerprint(part.state_dict()) != before[name] for name, part in parts.items())
    assert workflow.search.generation > 0
    assert run.counters.env_steps < 1.5 * steps


def test_what_is_made_smaller_by_hand():
    """2,000 of 100,000 steps; 320 of them explore, half of the rest is for two phases' calls."""
    config, composed = small(TRACK, 2_000)
    phases = config.training.phases
    assert [phase.get("duration_steps") for phase in phases] == [320, None, None, None]
    assert [phase.get("duration_updates") for phase in phases] == [None, 20, 20, None]
    # A call may take (2000 - 320) // 4 = 420 steps: 26 vector steps of 16 environments.
    own = config.algorithm
    assert config.environment.num_envs == own.population == 16 and own.episodes == 1
    assert own.train_every == config.environment.max_episode_steps == 20 and own.context == 8
    assert own.batch_length == 20  # 320 steps of 16 environments
    assert config.buffers["replay"].capacity == 4_000
    assert str(composed.origins["algorithm.episodes"]) == "a small run"
    (note,) = composed.notes
    assert "algorithm.episodes=1" in note and "phases at 0.02 of their length" in note


def test_what_was_typed_stays():
    words = ["algorithm.population=8", "algorithm.train_every=7", "training.phases=[]"]
    config, _ = small(TRACK, 2_000, *words, "environment.max_episode_steps=33")
    own = config.algorithm
    assert (own.population, own.episodes, own.train_every) == (8, 2, 7)  # episodes: as before
    assert config.environment.max_episode_steps == 33 and config.training.phases == []


@pytest.mark.parametrize(
    ("words", "steps"), [([], 100_000), ([], 200_000), (["training.phases=[]"], 100_000)]
)
def test_a_run_that_is_not_smaller_is_as_it_was(words, steps):
    config, composed = small(TRACK, steps, *words)
    plain, _ = configure(TRACK, [f"training.total_timesteps={steps}", *words])
    assert to_tree(config) == to_tree(plain) and not composed.notes


def test_what_has_no_phases_only_learns_sooner():
    """500 of 1,000,000 steps: it would learn from 10,000 on."""
    spec = "HalfCheetah-v5:sac"
    whole, less = configure(spec)[0], small(spec, 500)[0]
    assert whole.algorithm.learning_starts > 500 and less.algorithm.learning_starts == 450
    assert less.environment == whole.environment and less.training.phases == []
    ppo = small("CartPole-v1:ppo", 500)[0]
    plain = configure("CartPole-v1:ppo", ["training.total_timesteps=500"])[0]
    assert to_tree(ppo) == to_tree(plain)


def test_numbers_that_fit_still_fit():
    assert [largest_divisor(16, most) for most in (1, 5, 15, 16, 40)] == [1, 4, 8, 16, 16]
    assert largest_divisor(7, 5) == 1


@pytest.mark.needs("cma")
def test_debug_comes_to_every_phase(tmp_path, capsys):
    words = [TRACK, "--debug", "--total-timesteps", "300", *SMALL_NETWORKS, *QUIET]
    assert main(["train", *words, "--runs-dir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("a small run: ") == 1 and "never reached" not in shown
    text = find_run("@last", tmp_path)[0].metrics_file.read_text()
    for name in ("train/vae_loss", "train/dynamics_loss", "controller/generation"):
        assert name in text


@pytest.mark.needs("cma")
def test_a_plain_total_is_a_cap_and_says_what_never_comes(tmp_path, capsys):
    words = [TRACK, "--total-timesteps", "300", *SMALL_NETWORKS, *QUIET]
    assert main(["train", *words, "-q", "--runs-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().err
    assert (
        said.count("WARNING: phase 'see' is never reached: those before it take 16,000 of 300") == 1
    )
    assert len(said.splitlines()) == 1
    assert find_run("@last", tmp_path)[0].read_summary()["updates"] == 0


@pytest.mark.needs("cma")
def test_smoke_trains_every_part(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["smoke", DREAM, "--presets", "--timesteps", "300"]) == 0
    assert "2 ok, 0 failed" in capsys.readouterr().out  # and its control
