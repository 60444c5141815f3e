"""Command lines of other libraries are refused with the line to type instead, which is accepted."""

import re
import shlex

import pytest

from rl_lab.cli.main import main
from rl_lab.cli.spellings import SPELLINGS, hint, templates_of
from rl_lab.config.legacy.keys import RENAMED

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
        ("enjoy --algo ppo --env CartPole-v1 -f logs/", "play @best:CartPole-v1 --runs-dir logs/"),
        ("plot", "compare @last --plot curves.svg"),
        (
            "train CartPole-v1:ppo --n-eval-episodes 5",
            "train CartPole-v1:ppo evaluation.episodes=5",
        ),
        ("train --cuda false CartPole-v1:ppo", "train CartPole-v1:ppo experiment.device=cpu"),
        ("train --cuda True CartPole-v1:ppo", "train CartPole-v1:ppo"),
        ("train CartPole-v1:ppo --conf-file x.yml", "train --config x.yml"),
        (
            "train CartPole-v1:ppo --num-minibatches 4",
            "train CartPole-v1:ppo '~algorithm.batch_size' algorithm.minibatches=4",
        ),
        (
            "train Acrobot-v1:ppo --num-minibatches 4",
            "train Acrobot-v1:ppo algorithm.minibatches=4",
        ),
        (
            "train Pendulum-v1:sac --ent-coef 0.01",
            "train Pendulum-v1:sac algorithm.temperature=0.01",
        ),
        (
            "train CartPole-v1:ppo --anneal-lr --learning-rate 2e-3",
            "train CartPole-v1:ppo algorithm.learning_rate=lin_0.002",
        ),
        (
            "train CartPole-v1:ppo --num-env-runners 2",
            "train CartPole-v1:ppo environment.vectorization=process environment.workers=2",
        ),
        (  # only longer rollouts make room for this batch
            "train CartPole-v1:ppo --batch-size 1024 --num-steps 128",
            "train CartPole-v1:ppo algorithm.batch_size=1024 algorithm.rollout_steps=128",
        ),
        ("train CartPole-v1:ppo --optimize --n-trials 20", "sweep cartpole_ppo --trials 20"),
        ("train --algo dqn --env CartPole-v1 -optimize", "sweep FILE --base CartPole-v1:dqn"),
        ("train --gamma 0.9", "train ENVIRONMENT algorithm.gamma=0.9"),
        ("resume @last", "train --resume @last"),
    ],
)
def test_the_line_to_type_instead(typed, here, capsys):
    assert main(shlex.split(typed)) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and f"(here: rl-lab {here})" in error
    words = shlex.split(here)
    untold = {"--resume", "--config", "ENVIRONMENT"}  # a run, a file, a name that is not there
    if words[0] == "train" and not untold & set(words):  # and it is accepted
        keep = [word for word in words[1:] if word not in ("--track",)]
        assert main(["config", *keep, "--json"]) == 0


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("CartPole-v1:dqn --num-steps 128", "--num-steps: dqn has no such option"),
        ("CartPole-v1:dqn --q-lr 1e-3", "--q-lr: dqn has no such option"),
        ("CartPole-v1:ppo --tau 0.5", "see rl-lab algorithms ppo)"),
        ("CartPole-v1:ppo --buffer-size 100", "--buffer-size: ppo has no such option"),
        ("CartPole-v1:ppo --train-frequency 4", "--train-frequency: ppo has no such option"),
        ("CartPole-v1:ppo --capture-video", "--capture-video: no counterpart while training"),
        ("CartPole-v1:ppo --tensorboard-log logs", "--tensorboard-log: always on"),
        ("CartPole-v1:ppo --lr abc", "--lr: algorithm.learning_rate: must be a number"),
        ("CartPole-v1:ppo --lr 1e-3 --frob 3", "--frob: no such option here"),
        ("--algo a2c --env CartPole-v1", "no algorithm 'a2c'"),
    ],
)
def test_what_the_line_leaves_out_is_named(typed, said, capsys):
    assert main(["train", *shlex.split(typed)]) == 2
    assert said in capsys.readouterr().err


def test_an_environment_and_an_algorithm_as_two_words():
    for typed in ("train CartPole-v1 ppo", "train ppo CartPole-v1"):
        assert hint(shlex.split(typed)) == " (here: rl-lab train CartPole-v1:ppo)"
    assert hint(["train", "CartPole-v1:ppo", "Acrobot-v1:ppo"]) == ""


VALUES = {  # of options that want more than a small number
    "--policy": "MlpPolicy",
    "--vec-env": "subproc",
    "--conf-file": "absent.yaml",
    "--device": "cpu",
    "--optimizer": "adam",
    "--activation": "relu",
    "--hidden-dims": "[8]",
    "--batch-size": "64",
    "--sgd-minibatch-size": "64",
    "--minibatch-size": "64",
    "--buffer-size": "1000",
    "--env-wrappers": "[]",
    "--eval-deterministic": "true",
    "--normalize-obs": "true",
    "--normalize-reward": "true",
}
OLD_KEYS = {f"--{name.removeprefix('algorithm.').replace('_', '-')}" for name in RENAMED}
THEIRS = sorted(
    {*SPELLINGS, *(name for name in OLD_KEYS if templates_of(name) and "." not in name)}
)


@pytest.mark.parametrize("spec", ["CartPole-v1:ppo", "CartPole-v1:dqn", "Pendulum-v1:sac"])
@pytest.mark.parametrize("option", THEIRS)
def test_every_line_is_accepted_or_the_option_is_named(option, spec, capsys):
    valued = any("{}" in template for template in templates_of(option))
    said = hint(["train", spec, option, *([VALUES.get(option, "1")] if valued else [])])
    if said == "":  # an option of ours, too
        return
    line = shlex.split(re.match(r" \(here: rl-lab (.*?)\)( \(|$)", said)[1])
    if line[:2] == ["train", spec] and "--init-from-run" not in line:
        assert main(["config", *line[1:], "--json"]) == 0, capsys.readouterr().err
    if line == ["train", spec]:  # nothing to type for it
        assert f"({option}: " in said
        name = spec.partition(":")[2]
        refused = "environment.normalize_reward would change rewards"  # of a replay buffer
        assert (
            f"{name} has no such option" in said
            or templates_of(option)[0].startswith("(")
            or refused in said
        )


@pytest.mark.parametrize("typed", ["train --frobnicate", "list --limt 3", "compare --algo ppo", ""])
def test_no_guess_where_nothing_is_known(typed):
    assert hint(shlex.split(typed)) == ""


def test_our_own_options_stay_as_they_are(capsys):
    assert main(shlex.split("train CartPole-v1:ppo --seed 1-3 --jobs 2 --gamma 0.9")) == 2
    said = re.search(r"\(here: (.*)\)", capsys.readouterr().err)
    assert said[1] == "rl-lab train CartPole-v1:ppo --seed 1-3 --jobs 2 algorithm.gamma=0.9"
