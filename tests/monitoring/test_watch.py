"""Who is told what, how often, and that it goes on where it was saved."""

import json

import pytest

from properties import given, settings, st
from rl_lab.core.errors import ConfigError
from rl_lab.core.schema import MonitorConfig
from rl_lab.display.metric_style import load_display
from rl_lab.monitoring.catalog import built_in, declared, monitors_of, with_own_monitors
from rl_lab.monitoring.watch import MOST_TOLD, RECOVERY_ROWS, Watch
from tiny_runs import tiny_config

HIGH = {"high": MonitorConfig(metric="train/x", above=1, rows=1, tip="less of it")}


def told(watch, values, metric="train/x"):
    return [
        alert.step
        for step, value in enumerate(values)
        for alert in watch.look(step, {metric: value}, share=0.5)
    ]


def test_an_alert_says_what_where_and_what_to_try():
    (alert,) = Watch(HIGH).look(512, {"train/x": 3.0, "train/y": 9.0}, share=0.5)
    assert alert.to_tree() == {
        "step": 512,
        "monitor": "high",
        "metric": "train/x",
        "value": 3.0,
        "message": "train/x is 3: above 1",
        "tip": "less of it",
    }
    assert alert.text == "high at step 512: train/x is 3: above 1 (try: less of it)"


def test_it_speaks_once_and_again_after_it_had_recovered():
    bad, good = [3.0], [0.0]
    assert told(Watch(HIGH), bad * 50) == [0]
    assert told(Watch(HIGH), bad + good * (RECOVERY_ROWS - 1) + bad) == [0]
    assert told(Watch(HIGH), bad + good * RECOVERY_ROWS + bad) == [0, RECOVERY_ROWS + 1]
    assert len(told(Watch(HIGH), (bad + good * RECOVERY_ROWS) * 50)) == MOST_TOLD


def test_a_pattern_watches_every_metric_by_itself():
    watch = Watch({"high": MonitorConfig(metric="train/*_loss", above=1, rows=1)})
    row = {"train/a_loss": 2.0, "train/b_loss": 2.0, "train/c": 2.0}
    assert [each.metric for each in watch.look(0, row, share=0)] == ["train/a_loss", "train/b_loss"]
    assert watch.look(1, row, share=0) == []


def test_limits_follow_the_largest_size_of_another_metric():
    watch = Watch({"of": MonitorConfig(metric="q", above=2, of="r", rows=1)})
    rows = [{"q": 5.0}, {"q": 5.0, "r": -4.0}, {"q": 9.0, "r": 1.0}]  # the limit is 8 from then on
    found = [watch.look(step, row, share=0) for step, row in enumerate(rows)]
    assert [len(each) for each in found] == [0, 0, 1]


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(-1e6, 1e6) | st.just(float("inf")), max_size=60),
    cut=st.integers(0, 60),
)
def test_a_saved_watch_goes_on_with_the_same_alerts(values, cut):
    monitors = built_in() | {
        "own": MonitorConfig(metric="collect/return_mean", below=0, rows=2),
        "jump": MonitorConfig(metric="collect/return_mean", jumps=2, rows=1),
    }
    row = lambda value: {"collect/return_mean": value, "train/q_mean": value}  # noqa: E731
    straight, first = Watch(monitors), Watch(monitors)
    for step, value in enumerate(values):
        straight.look(step, row(value), share=step / 60)
    for step, value in enumerate(values[:cut]):
        first.look(step, row(value), share=step / 60)
    second = Watch(monitors)
    second.load_state_dict(first.state_dict())
    for step, value in enumerate(values[cut:], cut):
        second.look(step, row(value), share=step / 60)
    assert second.state_dict() == straight.state_dict()


# -- which monitors a run has ---------------------------------------------------------------------


def test_each_algorithm_has_its_own_monitors():
    ppo = monitors_of(tiny_config("CartPole-v1:ppo_defaults"), discrete=True)
    sac = monitors_of(tiny_config("Pendulum-v1:sac"), discrete=False)
    assert {"kl_high", "no_progress", "entropy_collapse"} <= set(ppo)
    assert "temperature_high" not in ppo
    assert {"temperature_high", "value_explosion"} <= set(sac)
    assert not {"kl_high", "entropy_collapse"} & set(sac)
    assert "no_progress" not in monitors_of(tiny_config("CartPole-v1:random"), discrete=True)


def test_ignored_ones_and_no_monitors_at_all():
    found = monitors_of(
        tiny_config("CartPole-v1:ppo_defaults", "logging.alerts.ignore=['kl_*']"), discrete=True
    )
    assert "clip_high" in found and not any(name.startswith("kl_") for name in found)
    config = tiny_config("CartPole-v1:ppo_defaults", "logging.alerts.policy=ignore")
    assert monitors_of(config, discrete=True) == {}
    hours = tiny_config("CartPole-v1:ppo_defaults", "logging.alerts.max_hours=0.5")
    assert monitors_of(hours, discrete=True)["late"].above == 0.5


def test_a_run_declares_monitors_of_its_own():
    word = "logging.alerts.monitors={short: {metric: eval/length_mean, below: 30, tip: look}}"
    config = tiny_config("CartPole-v1:ppo_defaults", word)
    assert monitors_of(config, discrete=True)["short"].below == 30
    with pytest.raises(ConfigError) as problem:
        wrong = "logging.alerts.monitors={a: {metric: x}, b: {above: 1}, c: {metric: x, abov: 1}}"
        tiny_config("CartPole-v1:ppo_defaults", wrong)
    text = str(problem.value)
    assert "logging.alerts.monitors.a: it never fires" in text
    assert "logging.alerts.monitors.b.metric: must not be empty" in text
    assert "logging.alerts.monitors.c.abov: unknown key (did you mean 'above'?)" in text


def test_the_users_metrics_yaml_declares_monitors_that_the_run_keeps(tmp_path):
    file = tmp_path / "metrics.yaml"
    file.write_text(
        "train/x: {precision: 1}\n"
        "monitors:\n"
        "  kl_high: {metric: train/approx_kl, above: 0.5}\n"
        "  mine: {metric: train/x, below: 0}\n"
    )
    config = with_own_monitors(tiny_config("CartPole-v1:ppo_defaults"), file)
    found = monitors_of(config, discrete=True)
    assert found["kl_high"].above == 0.5 and found["mine"].below == 0
    assert set(config.logging.alerts.monitors) == {"kl_high", "mine"}
    assert load_display([file])["train/x"].precision == 1  # the block is no metric
    # What the run itself says comes first.
    word = "logging.alerts.monitors={mine: {metric: train/x, below: -9}}"
    config = with_own_monitors(tiny_config("CartPole-v1:ppo_defaults", word), file)
    assert config.logging.alerts.monitors["mine"].below == -9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("monitors: 3", "monitors: must be a block of monitors by name"),
        ("monitors: {mine: 3}", "monitors.mine: must be a block of keys"),
        ("monitors: {mine: {metric: x, abve: 1}}", "monitors.mine.abve: unknown key"),
    ],
)
def test_mistakes_in_metrics_yaml_are_told(tmp_path, text, message):
    file = tmp_path / "metrics.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        declared(file)


def test_a_monitor_to_be_ignored_must_exist(tmp_path):
    config = tiny_config("CartPole-v1:ppo_defaults", "logging.alerts.ignore=[kl_hihg]")
    with pytest.raises(ConfigError, match=r"no monitor is called 'kl_hihg'.*'kl_high'"):
        with_own_monitors(config, tmp_path / "none.yaml")


def test_every_built_in_monitor_has_a_tip_that_a_line_can_hold():
    for name, monitor in built_in().items():
        assert 10 < len(monitor.tip) < 130 and "\n" not in monitor.tip, name
    assert json.dumps(list(built_in()))  # names are plain text
