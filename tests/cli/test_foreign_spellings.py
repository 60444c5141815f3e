"""Command lines of other libraries are refused with the line to type instead, which is accepted."""

import re
import shlex

import pytest

from rl_lab.cli.main import main
from rl_lab.cli.spellings import hint

SB3 = "--algo ppo --env CartPole-v1 -n 50000 --seed 3 -f logs/"


@pytest.mark.parametrize(
    ("typed", "here"),
    [
        (f"train {SB3}", "train CartPole-v1:ppo --total-timesteps 50000 --seed 3 --runs-dir logs/"),
        (SB3, "train CartPole-v1:ppo --total-timesteps 50000 --seed 3 --runs-dir logs/"),
        (
            "train --algo ppo --env CartPole-v1 -params n_envs:4 ent_coef:0.01",
            "train CartPole-v1:ppo environment.num_envs=4 algorithm.entropy_coefficient=0.01",
        ),
        (
            "train --algo sac --env Pendulum-v1 --vec-env subproc --eval-freq 5000",
            "train Pendulum-v1:sac environment.vectorization=process evaluation.every_steps=5000",
        ),
        (
            "train --env-id CartPole-v1 --total-timesteps 5k --learning-rate 3e-4 --track",
            "train CartPole-v1 --total-timesteps 5k algorithm.learning_rate=3e-4 --track",
        ),
        (
            "train --env_id=CartPole-v1 --num_steps=64 --update-epochs 4 --clip-coef 0.1 --cuda",
            "train CartPole-v1 algorithm.rollout_steps=64 algorithm.epochs=4"
            " algorithm.clip_range=0.1",
        ),
        (
            "train --algo dqn --env CartPole-v1 --buffer-size 10000 --batch-size 64 --tau 0.5",
            "train CartPole-v1:dqn buffers.replay.capacity=10000 algorithm.batch_size=64"
            " algorithm.target_rate=0.5",
        ),
        ("train CartPole-v1:ppo --exp-name mine", "train CartPole-v1:ppo experiment.name=mine"),
        (
            "train CartPole-v1 --algo SAC --device cpu",
            "train CartPole-v1:sac experiment.device=cpu",
        ),
        ("train reach_env:Reach-v0 --algorithm ppo", "train reach_env:Reach-v0:ppo"),
        ("train CartPole-v1:dqn --algo ppo", "train CartPole-v1:ppo"),
        (
            """train --run PPO --env CartPole-v1 --stop '{"timesteps_total": 50000}'""",
            "train CartPole-v1:ppo --total-timesteps 50000",
        ),
        ("play --algo ppo --env CartPole-v1 --n-episodes 3", "play @best:CartPole-v1 --episodes 3"),
        ("evaluate @last --n-eval-episodes 7", "evaluate @last --episodes 7"),
        ("enjoy --algo ppo", "play @last"),
        ("resume @last", "train --resume @last"),
    ],
)
def test_the_line_to_type_instead(typed, here, capsys):
    assert main(shlex.split(typed)) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and error.rstrip().endswith(f"(here: rl-lab {here})")
    words = shlex.split(here)
    if words[0] == "train" and "--resume" not in words:  # and it is accepted
        keep = [word for word in words[1:] if word not in ("--track",)]
        assert main(["config", *keep, "--json"]) == 0


@pytest.mark.parametrize("typed", ["train --frobnicate", "list --limt 3", "compare --algo ppo", ""])
def test_no_guess_where_nothing_is_known(typed):
    assert hint(shlex.split(typed)) == ""


def test_our_own_options_stay_as_they_are(capsys):
    assert main(shlex.split("train CartPole-v1:ppo --seed 1-3 --jobs 2 --gamma 0.9")) == 2
    said = re.search(r"\(here: (.*)\)", capsys.readouterr().err)
    assert said[1] == "rl-lab train CartPole-v1:ppo --seed 1-3 --jobs 2 algorithm.gamma=0.9"
