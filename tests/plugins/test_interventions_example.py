"""examples/interventions.py: the rules, their state in a run, and mistakes in them."""

from dataclasses import fields
from pathlib import Path

import pytest

from rl_lab.algorithms.ppo import PPO, PPOConfig
from rl_lab.algorithms.sac import SACConfig
from rl_lab.cli.main import main
from rl_lab.config.catalog import find_target
from rl_lab.core.errors import ConfigError
from rl_lab.core.schedule import Schedule, at
from rl_lab.records import faults
from rl_lab.records.metrics import read_metrics
from rl_lab.run.session import resume
from tiny_runs import final_state, run_hash, tiny_config, tiny_run

EXAMPLE = Path(__file__).parents[2] / "examples" / "interventions.py"


def of_example(name):
    return find_target(f"{EXAMPLE}:{name}")[0]


Change, Intervention = of_example("Change"), of_example("Intervention")
Interventions, InterventionsConfig = of_example("Interventions"), of_example("InterventionsConfig")
changeable = of_example("changeable")

RATE = "algorithm.learning_rate"
HALVE = Change(key=RATE, multiply=0.5)


def rules(*made, **config):
    """Rules at work on a PPO that was never built: only its configuration matters."""
    watched = Interventions(InterventionsConfig(rules=list(made)))
    watched.attach(PPO(PPOConfig(**{"learning_rate": 0.8, **config})))
    return watched


def rate(interventions, step=0):
    return at(interventions.algorithm.config, step).learning_rate


def see(interventions, *values, step=0):
    """The learning rate after each report of the metric."""
    found = []
    for value in values:
        interventions.observe({"eval/return_mean": value}, step)
        found.append(rate(interventions))
    return found


# -- the rules ------------------------------------------------------------------------------------


def test_it_acts_after_so_many_reports_without_an_improvement():
    watched = rules(Intervention(patience=2, actions=[HALVE]))
    #                     first  worse  equal: acts  1st   2nd: acts  better  worse
    assert see(watched, 5.0, 4.0, 5.0, 1.0, 1.0, 6.0, 5.0) == [0.8, 0.8, 0.4, 0.4, 0.2, 0.2, 0.2]
    assert watched.count == 2


def test_other_metrics_are_no_reports():
    watched = rules(Intervention(patience=1, actions=[HALVE]))
    for _ in range(5):
        assert watched.observe({"train/loss": 1.0}, 0) == []
    assert rate(watched) == 0.8


def test_less_is_better_if_said_so_and_a_small_gain_is_none():
    watched = rules(Intervention(mode="min", min_delta=0.5, patience=1, actions=[HALVE]))
    # 5 → 4.6 gains .4: none; 4.4 gains .6 on 5; 4.4 again: none
    assert see(watched, 5.0, 4.6, 4.4, 4.4) == [0.8, 0.4, 0.4, 0.2]


def test_reports_of_the_cooldown_do_not_count():
    watched = rules(Intervention(patience=1, cooldown=2, actions=[HALVE]))
    assert see(watched, 5.0, 1.0, 1.0, 1.0, 1.0) == [0.8, 0.4, 0.4, 0.4, 0.2]


def test_an_improvement_takes_everything_back_if_wanted():
    watched = rules(Intervention(patience=1, revert=True, actions=[HALVE]))
    assert see(watched, 5.0, 1.0, 1.0, 6.0, 1.0) == [0.8, 0.4, 0.2, 0.8, 0.4]
    assert watched.count == 3


def test_only_its_own_actions_are_taken_back():
    patient = Intervention(patience=2, actions=[Change(key=RATE, add=0.1, max=9.0)])
    quick = Intervention(patience=1, revert=True, actions=[HALVE])
    watched = rules(patient, quick)
    # halved; then + .1 and halved again; then only the + .1 is left
    expected = [0.8, 0.4, (0.8 * 0.5 + 0.1) * 0.5, 0.8 + 0.1]
    assert see(watched, 5.0, 1.0, 1.0, 6.0) == pytest.approx(expected)


def test_actions_by_hand():
    assert Change(key=RATE, multiply=0.5)(0.8) == 0.4
    assert Change(key=RATE, multiply=0.5, min=0.3)(0.4) == 0.3
    assert Change(key=RATE, multiply=2.0, max=1.0)(0.8) == 1.0
    assert Change(key=RATE, add=-0.5, min=0.0)(0.4) == 0.0
    assert Change(key=RATE, set=0.25)(0.8) == 0.25
    # what is beyond a bound already is not pulled back to it
    assert Change(key=RATE, multiply=0.5, min=0.3)(0.1) == 0.1
    assert Change(key=RATE, multiply=2.0, max=1.0)(3.0) == 3.0


def test_at_its_bound_it_is_silent_and_not_counted():
    watched = rules(Intervention(patience=1, actions=[Change(key=RATE, multiply=0.5, min=0.4)]))
    see(watched, 5.0, 1.0, 1.0, 1.0)
    assert (watched.count, watched.applied) == (1, [0])


def test_a_line_says_what_and_why():
    watched = rules(Intervention(patience=1, actions=[HALVE]))
    see(watched, 5.0)
    (line,) = watched.observe({"eval/return_mean": 4.0}, 700)
    expected = "eval/return_mean has not improved on 5 1 times"
    assert line == f"step 700: {expected}: algorithm.learning_rate 0.8 → 0.4"


def test_a_schedule_keeps_its_course():
    falling = Schedule(start=0.8, end=0.0, total=100)
    bounded = Change(key=RATE, multiply=0.5, min=0.15)
    watched = rules(Intervention(patience=1, actions=[bounded]), learning_rate=falling)
    see(watched, 5.0, 1.0)
    # .8 → .4, .4 → .2, .2 → .15 (the bound), .08 → .08 (below it already)
    values = [rate(watched, step) for step in (0, 50, 75, 90)]
    assert values == pytest.approx([0.4, 0.2, 0.15, 0.08])


def test_state_comes_back_with_the_values():
    rule = Intervention(patience=2, cooldown=1, actions=[HALVE])
    first, second = rules(rule), rules(rule)
    see(first, 5.0, 1.0, 1.0, 1.0, 1.0)
    second.load_state_dict(first.state_dict())
    assert rate(second) == rate(first) == 0.4
    assert see(first, 1.0, 1.0) == see(second, 1.0, 1.0) == [0.2, 0.2]


# -- in a run -------------------------------------------------------------------------------------

# The evaluations of so short a run never reach a gain of 1000: it stalls from the second one on.
RUN = (
    "training.callbacks={stalled: {type: interventions, rules: ["
    "{metric: eval/return_mean, patience: 1, min_delta: 1000, actions: "
    "[{key: algorithm.learning_rate, multiply: 0.5, min: 1e-5},"
    " {key: algorithm.entropy_coefficient, set: 0.01}]}]}}"
)
PLUGIN = f"plugins=['{EXAMPLE}']"
WORDS = ["CartPole-v1:ppo_defaults", PLUGIN, RUN, "algorithm.learning_rate=lin_1e-3"]


def test_a_run_learns_with_what_was_changed_and_tells_it(tmp_path):
    outcome = tiny_run(tmp_path, *WORDS)
    rows = read_metrics(outcome.run.metrics_file)
    # evaluations at 256, 512, 768, 1024: all but the first stall, but at the last one the rate has
    # fallen to 0 and the entropy coefficient is what it shall be: nothing changes
    assert [row["train/interventions"] for row in rows if "eval/return_mean" in row] == [0, 1, 2, 2]
    rates = {row["step"]: row["train/learning_rate"] for row in rows}
    # a rollout of 64 steps learns with the rate of where it began
    assert rates[512] == pytest.approx(1e-3 * (0.5 + 0.0625))
    assert rates[576] == pytest.approx(0.5 * 1e-3 * (0.4375 + 0.0625))
    assert rates[832] == pytest.approx(0.25 * 1e-3 * (0.1875 + 0.0625))
    assert "algorithm.entropy_coefficient 0 → 0.01" in outcome.run.log_file.read_text()
    assert final_state(outcome.run)["parts"]["callback.stalled"]["applied"] == [0, 0]


def test_an_interrupted_run_has_the_changed_values(tmp_path, monkeypatch):
    straight = tiny_run(tmp_path / "a", *WORDS, "checkpoint.every_steps=128")
    faults.reset()
    monkeypatch.setenv("RL_LAB_FAULT", "hook.after:error@23")  # step 704: after the second change
    with pytest.raises(OSError, match="injected at hook"):
        tiny_run(tmp_path / "b", *WORDS, "checkpoint.every_steps=128")
    monkeypatch.delenv("RL_LAB_FAULT")
    resumed = resume("@last", root=tmp_path / "b")
    assert run_hash(resumed.run) == run_hash(straight.run)


def test_the_example_file_trains(tmp_path):
    words = ["--config", str(EXAMPLE.with_suffix(".yaml")), "training.total_timesteps=512"]
    assert main(["train", *words, "-q", "--runs-dir", str(tmp_path)]) == 0


# -- mistakes -------------------------------------------------------------------------------------


def refused(block: str) -> str:
    with pytest.raises(ConfigError) as caught:
        block = f"training.callbacks={{stalled: {{type: interventions, rules: [{block}]}}}}"
        tiny_config("CartPole-v1:ppo_defaults", PLUGIN, block)
    return str(caught.value)


def test_what_is_read_once_cannot_be_changed():
    names = [field.name for field in fields(SACConfig) if field.metadata.get("fixed")]
    assert "initial_temperature" in names
    assert not {f"algorithm.{name}" for name in names} & set(changeable(SACConfig()))


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("{patience: 0, actions: [A]}", "[0].patience: must be 1 or more, got 0"),
        ("{cooldown: -1, actions: [A]}", "[0].cooldown: must be 0 or more, got -1"),
        ("{metric: reward, actions: [A]}", "[0].metric: must be a full name like"),
        ("{patients: 3, actions: [A]}", "[0].patients: unknown key (did you mean 'patience'?)"),
        ("{mode: most, actions: [A]}", "[0].mode: must be 'max' or 'min', got 'most'"),
        ("{actions: []}", "[0].actions: must have at least one entry"),
        (
            "{actions: [{key: algorithm.learning_rat, set: 1}]}",
            "[0].actions[0].key: no float option of this algorithm "
            "(did you mean 'algorithm.learning_rate'?)",
        ),
        ("{actions: [{key: algorithm.epochs, set: 1}]}", "[0].actions[0].key: no float option"),
        ("{actions: [{key: algorithm.gamma, set: 2}]}", "[0].actions[0].set: gamma must be in"),
        (
            "{actions: [{key: algorithm.gamma, add: 0.1, max: 2}]}",
            "[0].actions[0].max: gamma must be in",
        ),
        (
            "{actions: [{key: algorithm.gamma, add: 0.1}]}",
            "[0].actions[0].max: must be given where",
        ),
        ("{actions: [{key: algorithm.gamma, multiply: 2}]}", "[0].actions[0].max: must be given"),
        ("{actions: [{key: algorithm.gamma, add: -1}]}", "[0].actions[0].min: must be given"),
        ("{actions: [{key: algorithm.gamma, multiply: -1}]}", "[0].actions[0].multiply: must be"),
        ("{actions: [{key: algorithm.gamma}]}", "an action needs exactly one of them"),
        ("{actions: [{key: algorithm.gamma, set: 1, add: 1, max: 1}]}", "exactly one of them"),
    ],
)
def test_a_mistake_is_told_with_its_place(block, expected):
    good = "{key: algorithm.learning_rate, multiply: 0.5}"
    assert expected in refused(block.replace("[A]", f"[{good}]"))


def test_all_mistakes_at_once():
    told = refused("{patience: 0, actions: [{key: algorithm.gamma, multiply: -1}]}")
    assert "[0].patience:" in told and "actions[0].multiply:" in told


def test_a_metric_that_is_never_reported_is_told_at_the_end(tmp_path):
    outcome = tiny_run(tmp_path, *WORDS[:2], RUN.replace("return_mean", "retrn_mean"))
    assert "no 'eval/retrn_mean' was ever reported" in outcome.run.log_file.read_text()


def test_the_option_of_before_says_what_to_write_now():
    assert (
        tiny_config("CartPole-v1:ppo_defaults", "+training.interventions=[]").training.callbacks
        == {}
    )
    with pytest.raises(ConfigError, match=r"training\.interventions: is a callback now: copy"):
        tiny_config(
            "CartPole-v1:ppo_defaults", "+training.interventions=[{metric: eval/return_mean}]"
        )
