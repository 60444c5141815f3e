"""World Models in small runs: trials in the environment, phases, dreams, and resuming anywhere."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_lab.core.batch import OBS
from rl_lab.core.learner import Update
from rl_lab.core.state import differences, fingerprint, join, split
from rl_lab.core.tree import picked
from rl_lab.envs.dream import DreamEnv
from rl_lab.envs.track import PixelTrackEnv
from tiny_world_models import ONE, PHASES, TINY_PARTS, WORDS

pytestmark = pytest.mark.needs("cma")


def play(run, hook=None, count=1):
    for _ in range(count):
        action = run.scheduler.next_action()
        assert hook in (None, action), (hook, action)
        run.execute(action)


def generation(run):
    """One round after the other, until all candidates have played."""
    while not run.workflow.trials.complete:
        run.execute("collect")
        run.scheduler.hook = 0


@pytest.fixture
def run(tiny):
    return tiny(*WORDS, ONE)


def test_all_candidates_start_in_the_same_frame_and_other_generations_in_another(run):
    workflow, collector = run.workflow, run.collector
    firsts = []
    for _ in range(2):
        result = workflow.collect_step(run.counters.env_steps, phase=run.scheduler.view())
        assert result.steps == 16 * 4  # every step of every environment is counted
        first = result.trajectory[OBS][0]
        assert (first == first[:1]).all()
        firsts.append(first[0])
        workflow.trials.begin_generation()
    assert not torch.equal(*firsts)
    assert collector.obs.shape == (4, 3, 32, 32)


def test_a_candidate_is_paid_what_it_earns_alone(tiny):
    run = tiny(*WORDS, ONE, "algorithm.episodes=2")
    workflow, seeds = run.workflow, run.workflow.trials.seeds.tolist()
    generation(run)
    for number, candidate in enumerate(workflow.search.ask()):
        workflow.search.strategy.mean = candidate
        earned = []
        for seed in seeds:
            env = gym.make("PixelTrack-v0", max_episode_steps=40)
            frame, _ = env.reset(seed=seed)
            state, total, over = workflow.initial_state(1), 0.0, False
            while not over:
                obs = torch.from_numpy(frame).permute(2, 0, 1)[None]
                decision = workflow.act(obs, state, deterministic=True)
                state = decision.state
                frame, reward, ended, cut, _ = env.step(decision.action[0].numpy())
                total, over = total + reward, ended or cut
            earned.append(total)
        assert workflow.trials.returns()[number] == pytest.approx(np.mean(earned), abs=1e-4)


def test_the_search_moves_towards_what_earned_more(run):
    workflow = run.workflow
    generation(run)
    candidates = workflow.search.ask().copy()
    best = int(np.argmax(workflow.trials.returns()))
    phase = run.scheduler.view()
    batch = workflow.sample(run.buffers["replay"], hook="update_controller", phase=phase)
    metrics = workflow.update_controller(batch, phase=phase)
    assert metrics["generation"] == 1 and metrics["fitness_best"] == batch["fitness"].max()
    moved = workflow.search.mean @ candidates[best]
    worst = int(np.argmin(batch["fitness"].numpy()))
    assert moved > workflow.search.mean @ candidates[worst]
    assert not workflow.trials.complete


def test_a_controller_waits_for_its_generation(run):
    workflow, phase = run.workflow, run.scheduler.view()
    buffer = run.buffers["replay"]
    assert workflow.sample(buffer, hook="update_controller", phase=phase) is None
    generation(run)
    assert workflow.sample(buffer, hook="update_controller", phase=phase) is not None


def test_a_round_that_another_policy_has_disturbed_is_played_again(tiny):
    run = tiny(*WORDS, ONE, "algorithm.train_every=3")  # nobody leaves the track that soon
    workflow, step, phase = run.workflow, 0, run.scheduler.view()
    for others, elapsed in ((0, 3), (0, 6), (12, 3), (0, 6)):  # steps of others in between
        step += others
        rows = workflow.collect_step(step, phase=phase).trajectory
        assert workflow.trials.elapsed == elapsed
        common = (rows[OBS][0] == rows[OBS][0, :1]).all()  # all stand in the same first frame
        assert common == (elapsed == 3)
        step += 12


def test_every_part_learns_by_its_own_hook(tiny):
    hooks = {"update_vae": "vae", "update_dynamics": "dynamics"}
    for hook, part in hooks.items():
        phases = (
            "training.phases=[{name: explore, policy: random, duration_steps: 128, hooks: "
            f"[collect]}}, {{name: learn, type: offline, duration_updates: 3, hooks: [{hook}]}}]"
        )
        run = tiny(*WORDS, phases)
        before = {
            name: fingerprint(getattr(run.workflow, name).state_dict()) for name in hooks.values()
        }
        play(run, "collect", 2)
        play(run, hook, 3)
        for name in hooks.values():
            changed = fingerprint(getattr(run.workflow, name).state_dict()) != before[name]
            assert changed == (name == part)
        assert run.workflow.gradient_steps == 3


@pytest.mark.parametrize("variant", ["world_models_untrained", "world_models_dream_untrained"])
def test_the_controls_leave_m_as_it_was(tiny, variant):
    """V and C learn; M keeps its first weights, and its hidden state changes with what was seen."""
    run = tiny(f"PixelTrack-v0:{variant}", *TINY_PARTS, "algorithm.episodes=1")
    trained = tiny(f"PixelTrack-v0:{variant.removesuffix('_untrained')}")
    assert trained.workflow.config.memory and run.workflow.config.memory
    assert "foresee" in [phase.name for phase in trained.scheduler.phases]
    hooks = {hook for phase in run.scheduler.phases for hook in phase.hooks}
    assert hooks == {"collect", "update_vae", "update_controller"}
    workflow, obs = run.workflow, torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    state = workflow.act(obs, workflow.initial_state(2), deterministic=True).state
    assert not torch.equal(*state["hidden"])


def test_windows_are_as_long_as_episodes_allow(tiny):
    """The track lets nobody drive 500 steps at random; the longest episode is all there is."""
    phases = (
        "training.phases=[{name: explore, policy: random, duration_steps: 256, hooks: [collect]},"
        "{name: foresee, type: offline, duration_updates: 2, hooks: [update_dynamics]}]"
    )
    run = tiny(*WORDS, phases, "algorithm.batch_length=500", "buffers.replay.capacity=400")
    play(run, "collect", 4)
    workflow, buffer, phase = run.workflow, run.buffers["replay"], run.scheduler.view()
    longest = buffer.window_length(501)
    assert 10 < longest <= 41  # 40 steps, and the frame that they end in
    batch = workflow.sample(buffer, hook="update_dynamics", phase=phase)
    assert batch["reset"].shape == (1, longest, 2)
    play(run, "update_dynamics", 2)
    assert workflow.gradient_steps == 2
    short = tiny(*WORDS, phases)  # batch_length=3
    play(short, "collect", 4)
    batch = short.workflow.sample(short.buffers["replay"], hook="update_dynamics", phase=phase)
    assert batch["reset"].shape == (1, 4, 2)


def test_z_is_drawn_anew_for_every_batch(run):
    play(run, "collect")
    workflow, phase = run.workflow, run.scheduler.view()
    batch = workflow.sample(run.buffers["replay"], hook="update_dynamics", phase=phase)
    seen = []
    nothing = Update(torch.zeros(()), torch.zeros(()), {}, {}, torch.zeros(1))
    workflow.dynamics_learner.step = lambda latent, *_, **__: seen.append(latent) or nothing
    for _ in range(2):
        workflow.update_dynamics(batch, phase=phase)
    assert not torch.equal(*seen)
    assert (seen[0] - seen[1]).std() > 0.1


def test_dreams_need_no_environment(tiny):
    phases = (
        "training.phases=[{name: explore, policy: random, duration_steps: 128, hooks: [collect]},"
        "{name: dream, type: offline, duration_updates: 3, hooks: [update_controller]}]"
    )
    run = tiny(*WORDS, "algorithm.fitness=dream", "algorithm.temperature=1.2", phases)
    play(run, "collect", 2)
    before = run.workflow.search.mean
    play(run, "update_controller", 3)
    assert run.workflow.search.generation == 3 and run.counters.env_steps == 128
    assert not np.array_equal(run.workflow.search.mean, before)


# -- resuming ----------------------------------------------------------------------------------


def everything(run):
    state = run.state()
    state.pop("metrics_offset")
    return state


@pytest.mark.parametrize(
    ("fitness", "more"),
    [
        ("env", []),
        ("env", ["algorithm.batch_length=99", "buffers.replay.capacity=200"]),  # whole episodes
        ("dream", ["algorithm.squash=[clipped_tanh]"]),
    ],
)
def test_saved_between_any_two_hooks_it_ends_the_same(tiny, fitness, more):
    """In the middle of V, of M, of a trial and of a generation."""
    words = [*WORDS, f"algorithm.fitness={fitness}", "algorithm.train_every=10", PHASES, *more]
    words += ["environment.max_episode_steps=15", "training.total_timesteps=4096"]
    straight, saved, hooks = tiny(*words), {}, []
    while hook := straight.scheduler.next_action():
        if len(hooks) % 5 in (1, 3):
            saved[len(hooks)] = join(*split(straight.state()))  # as it would come from a disk
        hooks.append(hook)
        play(straight)
    assert straight.workflow.search.generation >= 2
    assert {hooks[number] for number in saved} == {"collect", *straight.workflow.hooks}
    expected = everything(straight)
    for number, state in saved.items():
        resumed = tiny(*words, "logging.every_steps=1")
        torch.manual_seed(123)
        resumed.load(state)
        play(resumed, count=len(hooks) - number)
        assert differences(everything(resumed), expected) == [], number


# -- a dream as an environment ---------------------------------------------------------------------


def test_a_dream_is_an_environment(run):
    play(run, "collect")
    starts = picked(run.buffers["replay"].sequences(5, 4), 0)
    real = PixelTrackEnv()
    spaces = (real.observation_space, real.action_space)
    env = DreamEnv(run.workflow, starts, *spaces, max_episode_steps=6)

    def episode(seed):
        frames, rewards = [env.reset(seed=seed)[0]], []
        while True:
            frame, reward, terminated, truncated, info = env.step(np.array([0.3], np.float32))
            frames.append(frame)
            rewards.append(reward)
            assert real.observation_space.contains(frame) and 0 < info["continues"] < 1
            if terminated or truncated:
                return np.stack(frames), rewards, terminated

    ends = [episode(seed) for seed in range(8)]
    assert {len(rewards) for _, rewards, _ in ends} <= set(range(1, 7))
    assert any(terminated for *_, terminated in ends)
    again = episode(3)
    assert np.array_equal(again[0], ends[3][0]) and again[1] == ends[3][1]
    assert not np.array_equal(ends[3][0][0], ends[4][0][0])


def test_it_draws_what_it_foresaw(run):
    assert run.workflow.draws and run.workflow.pictures([]) == {}
    play(run, "collect")
    run.scheduler.hook = 0
    play(run, "collect")
    film = run.workflow.pictures([])["open_loop_obs"].layers[0]
    assert film.labels == ["truth", "model", "error"]
    frames = run.buffers["replay"].newest(5 + 16)["obs"][5:, 0]  # those behind the ones it saw
    assert len(frames) > 3 and film.strips[1].shape == (len(frames), 3, 32, 32)
    assert np.allclose(film.strips[0], frames.numpy() / 255)
    assert np.allclose(film.strips[2], np.abs(film.strips[0] - film.strips[1]))
