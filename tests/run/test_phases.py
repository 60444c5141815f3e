import json

import pytest

from rl_lab.core.errors import ConfigError
from rl_lab.run.phases import PhaseScheduler, never_reached, parse_phases, shortened

THREE = [
    {"name": "explore", "duration_steps": 20, "hooks": ["collect"], "policy": "random"},
    {
        "repeat": 2,
        "phases": [
            {"name": "dream", "duration_cycles": 2, "hooks": ["collect", {"update": 2}, "evaluate"]}
        ],
    },
    {"name": "finish", "until": "eval/return_mean >= 9", "max_steps": 100, "hooks": ["collect"]},
]


def play(scheduler, limit=1000, metrics=None):
    """Drive the machine with 10 steps per collect; returns (phase, action) as they come."""
    log = []
    while (action := scheduler.next_action()) is not None and len(log) < limit:
        log.append((scheduler.current_phase().name, action))
        if metrics and action == "collect":
            scheduler.observe(metrics(scheduler))
        scheduler.advance(
            action,
            steps=10 if action == "collect" else 0,
            updates=1 if action.startswith("update") else 0,
        )
    return log


def test_phases_repeat_and_end():
    log = play(PhaseScheduler(parse_phases(THREE), 1000))
    cycle = [("dream", hook) for hook in ("collect", "update", "update", "evaluate")]
    expected = [("explore", "collect")] * 2 + cycle * 4 + [("finish", "collect")] * 10
    assert log == expected


def test_until_ends_a_phase_when_the_metric_is_reached():
    scheduler = PhaseScheduler(parse_phases(THREE), 1000)
    log = play(scheduler, metrics=lambda s: {"eval/return_mean": s.total_steps / 10})
    # the ninth collect (80 steps before it) shows 8, the tenth 9: four collects fewer than max
    assert log.count(("finish", "collect")) == 4


def test_the_budget_caps_the_whole():
    scheduler = PhaseScheduler(parse_phases(THREE[:2]), 45)
    play(scheduler)
    assert scheduler.total_steps == 50  # the first multiple of 10 beyond 45, at the cycle's end
    assert scheduler.next_action() is None


def test_duration_updates_is_exact():
    blocks = [{"name": "fit", "type": "offline", "duration_updates": 5, "hooks": [{"update": 2}]}]
    assert len(play(PhaseScheduler(parse_phases(blocks), 100))) == 5


@pytest.mark.parametrize("cut", range(30))
def test_resume_between_any_two_hooks(cut):
    """Save after every single action, restore into a new machine: the same story goes on."""
    straight = PhaseScheduler(parse_phases(THREE), 1000)
    whole = play(straight)
    first = PhaseScheduler(parse_phases(THREE), 1000)
    begun = play(first, limit=cut)
    second = PhaseScheduler(parse_phases(THREE), 1000)
    second.set_state(json.loads(json.dumps(first.get_state())))
    assert begun + play(second) == whole
    assert vars(second) == vars(straight)


def test_the_view_tells_progress_and_extra_keys():
    blocks = [{"name": "a", "duration_steps": 40, "hooks": ["collect"], "temperature": 0.5}]
    scheduler = PhaseScheduler(parse_phases(blocks), 1000)
    scheduler.advance("collect", steps=10)
    view = scheduler.view()
    assert (view["progress"], view["temperature"], view["step"]) == (0.25, 0.5, 10)
    with pytest.raises(TypeError):
        view["progress"] = 1


def test_the_step_of_a_phase_is_that_of_the_run():
    blocks = [
        {"name": "a", "duration_steps": 20, "hooks": ["collect"]},
        {"name": "b", "hooks": ["collect"]},
    ]
    scheduler = PhaseScheduler(parse_phases(blocks), 1000)
    seen = []
    for _ in range(4):
        seen.append((scheduler.view()["name"], scheduler.view()["step"]))
        scheduler.advance("collect", steps=10)
    assert seen == [("a", 0), ("a", 10), ("b", 20), ("b", 30)]


def test_schedules_are_read_where_the_cycle_began_and_resume_does_not_change_it():
    blocks = [{"name": "a", "hooks": ["collect", "update"]}]
    scheduler = PhaseScheduler(parse_phases(blocks), 1000)
    for _ in range(2):
        scheduler.advance("collect", steps=10)
        scheduler.advance("update", updates=1)
    scheduler.advance("collect", steps=10)
    resumed = PhaseScheduler(parse_phases(blocks), 1000)
    resumed.set_state(scheduler.get_state())
    for each in (scheduler, resumed):
        assert (each.view()["step"], each.view()["env_steps"]) == (20, 30)


def test_a_skipped_update_counts_nothing_and_an_idle_phase_is_an_error():
    blocks = [{"name": "fit", "type": "offline", "duration_updates": 5, "hooks": ["update"]}]
    scheduler = PhaseScheduler(parse_phases(blocks), 100)
    with pytest.raises(ConfigError, match="'fit' makes no progress"):
        scheduler.advance("update", updates=0)


@pytest.mark.parametrize(
    ("blocks", "problem"),
    [
        ([{"name": "a", "hooks": []}], r"\[0\]\.hooks: must not be empty"),
        ([{"name": "a", "hooks": ["collect"], "typ": "online"}], "did you mean 'type'"),
        ([{"name": "a", "hooks": ["collect"], "type": "sideways"}], "must be 'online', 'offline'"),
        ([{"name": "a", "hooks": ["collect"], "duration_steps": 0}], "at least 1"),
        ([{"name": "a", "hooks": ["collect"], "duration_steps": "many"}], "a whole number"),
        ([{"name": "a", "hooks": ["collect"], "until": "good enough"}], "write `metric >= number`"),
        ([{"name": "a", "hooks": ["collect"], "type": "offline"}], "does not collect"),
        ([{"repeat": 0, "phases": [{"name": "a", "hooks": ["collect"]}]}], "at least 1"),
        ([{"repeat": 2}], "a repeat block has"),
        (["collect"], "a phase is a mapping"),
        (
            [{"name": "a", "hooks": ["collect"]}, {"name": "b", "hooks": ["collect"]}],
            "'b' is unreachable: 'a' has no duration",
        ),
        (
            [
                {"name": "a", "hooks": ["collect"], "until": "x > 1"},
                {"name": "b", "hooks": ["collect"]},
            ],
            "'b' is unreachable: 'a' has no max_steps",
        ),
    ],
)
def test_bad_phases(blocks, problem):
    with pytest.raises(ConfigError, match=problem):
        parse_phases(blocks)


def test_all_problems_at_once():
    blocks = [{"name": "a", "hooks": []}, {"name": "b", "hooks": ["x"], "type": "?"}]
    with pytest.raises(ConfigError) as caught:
        parse_phases(blocks)
    assert len(caught.value.problems) == 2


def test_workflow_hooks_is_accepted_for_hooks():
    blocks = [{"name": "a", "workflow_hooks": ["collect", "update_world_model"]}]
    assert parse_phases(blocks)[0].hooks == ("collect", "update_world_model")


SOME = [
    {"name": "look", "type": "eval_only", "hooks": ["evaluate"]},
    {"name": "explore", "hooks": ["collect"], "duration_steps": "1e3"},
    {"name": "see", "type": "offline", "hooks": ["update"], "duration_updates": 5_000},
    {
        "repeat": 3,
        "phases": [
            {"name": "act", "hooks": ["collect"], "duration_steps": 300, "extra": 7},
            {"name": "fit", "type": "offline", "hooks": ["update"], "duration_cycles": 10},
        ],
    },
    {"name": "rest", "hooks": ["collect"], "until": "x > 1", "max_steps": 900},
    {"name": "end", "hooks": ["collect"]},
]


def test_a_share_of_every_phase():
    found = shortened(SOME, 0.05, 20)
    assert [each.get("duration_steps") for each in found] == [None, 50, None, None, None, None]
    assert found[2]["duration_updates"] == 20  # 250, if it were not too many
    inner = found[3]["phases"]
    assert found[3]["repeat"] == 3 and inner[0]["duration_steps"] == 15 and inner[0]["extra"] == 7
    assert inner[1]["duration_cycles"] == 1  # half of one would be none
    assert found[4]["max_steps"] == 45 and found[4]["until"] == "x > 1"
    assert found[0] == SOME[0] and found[5] == SOME[5]
    assert SOME[1]["duration_steps"] == "1e3"  # those that were given stay as they are
    assert [each.name for each in parse_phases(found)] == [each.name for each in parse_phases(SOME)]
    assert shortened(SOME, 0.001, 20)[2]["duration_updates"] == 5


@pytest.mark.parametrize(
    ("total", "said"),
    [
        (1000, "phase 'see' is never reached: those before it take 1,000 of 1,000"),
        (1001, "phase 'fit' is never reached: those before it take 1,300 of 1,001"),
        (1301, "phase 'rest' is never reached: those before it take 1,900 of 1,301"),
        (1901, ""),  # `rest` may be over at once
    ],
)
def test_the_first_phase_after_the_end_is_named(total, said):
    """1,000 steps, then three times 300."""
    found = never_reached(parse_phases(SOME), total)
    assert [line.partition(" total_timesteps")[0] for line in found] == ([said] if said else [])
    assert all("--debug" in line for line in found)
