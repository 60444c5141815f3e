"""Playing one environment: returns and ends by hand, and who is called when."""

from rl_lab.collect.play import Played, play
from rl_lab.envs.counter import CounterEnv


def played(env, seeds, **options):
    return list(play(env, lambda obs: 0, seeds=seeds, **options))


def test_episodes_by_hand():
    # The counter pays 1, 2, 3, …; a seed starts it again at its first length.
    assert played(CounterEnv([3]), [0, 1]) == [Played(6.0, 3, True)] * 2
    assert played(CounterEnv([3], ends="truncated"), [0]) == [Played(6.0, 3, False)]
    assert played(CounterEnv([3], ends="both"), [0]) == [Played(6.0, 3, True)]
    assert played(CounterEnv([9]), [0], max_steps=2) == [Played(3.0, 2, False)]
    assert played(CounterEnv([2]), [0], max_steps=2) == [Played(3.0, 2, True)]


def test_every_frame_is_shown_and_every_episode_begins():
    env, calls = CounterEnv([2]), []
    options = {"begin": lambda: calls.append("begin"), "show": lambda: calls.append(env.t)}
    played(env, [5, 6], **options)
    assert calls == ["begin", 0, 1, 2, "begin", 0, 1, 2]


def test_an_interrupted_episode_is_not_told():
    env, steps = CounterEnv([3]), []

    def act(obs):
        steps.append(obs)
        return 0

    found = list(play(env, act, seeds=[0, 1, 2], interrupted=lambda: len(steps) == 4))
    assert found == [Played(6.0, 3, True)] and env.t == 1
