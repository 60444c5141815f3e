import pytest

from rl_lab.analysis.query import Filter, group, lower_is_better, parse_filter, select, sort
from rl_lab.core.errors import UserError


def row(id, **columns):
    blank = dict.fromkeys(("name", "algorithm", "environment", "status", "env_steps", "best"))
    return {**blank, "id": id, "seed": 0, "last_return": None, "wall_time": None, "tags": [],
            "experiment": None, "metrics": {}, **columns}  # fmt: skip


ROWS = [
    row("a", algorithm="ppo", name="cart-1", seed=1, best=500.0, last_return=450.0,
        tags=["paper", "icml"], metrics={"eval/return_mean": 450.0, "train/loss": 0.5}),
    row("b", algorithm="ppo", name="cart-2", seed=2, best=90.0, last_return=80.0, tags=["draft"],
        metrics={"eval/return_mean": 80.0, "train/loss": "nan"}),
    row("c", algorithm="dqn", name="lunar", seed=3, best=None,
        metrics={"collect/return_mean": 100.0, "train/value_loss": 0.1}),
]  # fmt: skip


def found(*words, rows=ROWS):
    return "".join(each["id"] for each in select(rows, [parse_filter(word) for word in words]))


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ([], "abc"),
        (["algorithm=ppo"], "ab"),
        (["algorithm==ppo"], "ab"),
        (["algorithm!=ppo"], "c"),
        (["name=cart*"], "ab"),
        (["name=*r*"], "abc"),
        (["name!=cart*"], "c"),
        (["name=cart"], ""),
        (["eval/return_mean>400"], "a"),
        (["eval/return_mean >= 450"], "a"),
        (["eval/return_mean<450"], "b"),
        (["seed<=2"], "ab"),
        (["seed!=1"], "bc"),
        (["seed=1.0"], "a"),
        (["best<1_000"], "ab"),  # c has no best: it is neither below nor above
        (["best!=90"], "ac"),
        (["tag=paper"], "a"),
        (["tag=*a*"], "ab"),
        (["tag!=paper"], "bc"),  # none of its tags
        (["tags=icml"], "a"),
        (["reward>=100"], "ac"),  # c was never evaluated: its episodes count
        (["loss<1"], "ac"),  # NaN is not below anything
        (["loss!=0.5"], "bc"),
        (["algorithm=ppo", "seed>1"], "b"),
        (["name>cart-1"], "bc"),
    ],
)
def test_filters(words, ids):
    assert found(*words) == ids


def test_a_filter_that_is_none():
    assert parse_filter("a/b<=1") == Filter("a/b", "<=", "1")
    for word in ("algorithm", "=ppo", "algorithm=", "", "a b=1"):
        with pytest.raises(UserError, match="--filter"):
            parse_filter(word)
    with pytest.raises(UserError, match="'seed' is a number"):
        found("seed=one")


def test_an_unknown_key_is_named_with_the_nearest_one():
    with pytest.raises(UserError, match=r"no run has 'algoritm'.*did you mean 'algorithm'"):
        found("algoritm=ppo")
    with pytest.raises(UserError, match="did you mean 'eval/return_mean'"):
        found("eval/retrun_mean>1")
    with pytest.raises(UserError, match="did you mean 'reward'"):
        sort(ROWS, "rewards")
    assert found("algoritm=ppo", rows=[]) == ""
    assert found("best>1", rows=[ROWS[2]]) == ""  # a column that is empty is no mistake


def test_sorting_puts_what_is_missing_last():
    ids = lambda *words, **options: "".join(r["id"] for r in sort(ROWS, *words, **options))  # noqa: E731
    assert ids("reward") == "acb"
    assert ids("reward", ascending=True) == "bca"
    assert ids("best") == ids("best", ascending=True)[1::-1] + "c" == "abc"
    assert ids("loss") == "acb" and ids("loss", ascending=True) == "cab"  # b: NaN
    assert ids("name") == "cba" and ids("tags", ascending=True) == "bac"
    assert lower_is_better("loss") and lower_is_better("train/value_loss")
    assert not lower_is_better("reward")


def test_groups_by_hand():
    rows = [
        row("a", experiment="x", name="n", seed=1, best=10.0, last_return=4.0, env_steps=100,
            status="finished", environment="E", algorithm="ppo"),
        row("b", experiment="y", name="m", seed=1, best=7.0, environment="E", algorithm="dqn"),
        row("c", experiment="x", name="n", seed=2, best=14.0, last_return=None, env_steps=300),
        row("d", experiment=None, name="k", seed=1),
    ]  # fmt: skip
    x, y, lone = group(rows)
    assert (x["experiment"], x["name"], x["seeds"], x["runs"], x["finished"]) == ("x", "n", 2, 2, 1)
    # mean (10 + 14) / 2 = 12; deviation sqrt((4 + 4) / 1) = 2.828…
    assert x["best"] == 12.0 and x["best_std"] == pytest.approx(8**0.5)
    assert x["last_return"] == 4.0 and x["last_return_std"] is None
    assert x["env_steps"] == 200.0 and x["ids"] == ["a", "c"]
    assert y["best"] == 7.0 and y["best_std"] is None and y["name"] == "m"
    assert lone["experiment"] == "d" and lone["best"] is None
    assert [each["experiment"] for each in sort([x, y, lone], "best")] == ["x", "y", "d"]


def test_the_same_seed_twice_is_one_seed_and_two_runs():
    rows = [row(id, experiment="x", name=id, seed=1, environment="E", algorithm="A") for id in "ab"]
    (x,) = group(rows)
    assert (x["seeds"], x["runs"], x["name"]) == (1, 2, "E-A")
