"""Run folders that somebody else has prepared, and what opening them says."""

import re

import yaml

from rl_lab.cli.main import main

EVALUATE = ["evaluate", "RUN", "--episodes", "1"]
RESUME = ["train", "--resume", "RUN", "-q"]
FORK = ["train", "--fork", "RUN:256", "-q"]
VERIFY = ["verify", "RUN", "--steps", "64"]
PLAY = ["play", "RUN", "--max-steps", "2", "--video", "film.gif"]
DIFF = ["config", "CartPole-v1:ppo", "--diff", "RUN"]
PROFILE = ["bench", "profile", "RUN", "--steps", "64", "--repeats", "1"]
LOOK = [["show", "RUN"], ["report", "RUN"], ["compare", "RUN"]]
DOORS = [EVALUATE, RESUME, FORK, VERIFY, PLAY, DIFF, PROFILE]


def tree_of(run):
    return yaml.safe_load(run.config_file.read_text())


def rewrite(run, change):
    """Another config.yaml, made by `change(tree)`."""
    tree = tree_of(run)
    run.config_file.write_text(yaml.safe_dump(change(tree) or tree, sort_keys=False))


def opened(run, words, capsys):
    """Exit code and stderr of a command; never a traceback, never a bug."""
    runs = ["--runs-dir", str(run.path.parent)]
    code = main(
        [*[str(run.path) + word[3:] if word[:3] == "RUN" else word for word in words], *runs]
    )
    told = capsys.readouterr()
    assert "Traceback" not in told.err and "--debug shows" not in told.err, told.err
    assert "hunter2" not in told.out + told.err
    if code not in (0, 1):
        assert len(re.findall("^error: ", told.err, re.M)) == 1, told.err
        assert len([line for line in told.err.splitlines() if "warning" not in line.lower()]) == 1
    return code, told.err


def no_canary(run):
    return not (run.path.parent.parent / "canary").exists()


# ---- code by its path

FILE, MODULE = "FILE", "hostile_module.Thing"  # FILE: the absolute path of hostile.py


def at(path, value):
    """Put a value at `a.b.0.c`, whatever is there."""

    def change(tree):
        here, keys = tree, path.split(".")
        for key in keys[:-1]:
            if isinstance(here, list):
                here = here[int(key)]
            else:
                if not isinstance(here.get(key), (dict, list)):
                    here[key] = {}
                here = here[key]
        here[keys[-1]] = value

    return change


def disk(folder):
    return {"replay": {"type": "disk", "folder": folder}}


def old_keys(**keys):
    """A file of version 0, whose keys are renamed when it is loaded."""

    def change(tree):
        return {
            "version": 0,
            "algorithm": {"name": "ppo"},
            "environment": {"id": "CartPole-v1"},
        } | keys

    return change


CODE = {
    "a plug-in": at("plugins", [FILE]),
    "a plug-in that is no list": at("plugins", FILE),
    "a plug-in by a path that goes up": at("plugins", ["../hostile.py"]),
    "a plug-in beside config.yaml": at("plugins", ["beside_the_run.py"]),
    "algorithm by file": at("algorithm._target_", f"{FILE}:Thing"),
    "algorithm by module": at("algorithm", {"_target_": MODULE}),
    "algorithm beside config.yaml": at("algorithm._target_", "beside_the_run.Thing"),
    "encoder": at("network.encoder._target_", MODULE),
    "memory": at("network.memory", {"_target_": MODULE}),
    "actor": at("network.actor._target_", MODULE),
    "critic": at("network.critic._target_", MODULE),
    "optimizer": at("algorithm.optimizer", {"_target_": MODULE, "_partial_": True}),
    "optimizers": at("optimizers", {"actor": {"_target_": MODULE}}),
    "buffer": at("buffers", {"rollout": {"_target_": MODULE}}),
    "buffer in a buffer": at("buffers", {"a": {"parts": {"b": {"_target_": MODULE}}}}),
    "component os.system": at("components.a", {"_target_": "os.system", "command": "touch CANARY"}),
    "component by module": at("components", {"a": {"_target_": MODULE}}),
    "component in a list": at("components", {"a": [{"b": [{"_target_": MODULE}]}]}),
    "component deep inside": at("components.a.b.c.d.e._target_", f"{FILE}:Thing"),
    "environment of a module": at("environment.id", "hostile_module:CartPole-v1"),
    "environment of a package": at("environment.id", "hostile_package:CartPole-v1"),
    "environment of os": at("environment.id", "os:CartPole-v1"),
    "kwargs with a target": at("environment.kwargs", {"a": {"_target_": MODULE}}),
    "kwargs with module:Id": at("environment.kwargs", {"env_id": "hostile_module:X-v0"}),
    "kwargs with a dotted name": at("environment.kwargs", {"reward": "hostile_module.Thing"}),
    "kwargs with a module": at("environment.kwargs", {"task": "hostile_module"}),
    "kwargs with a module as a key": at("environment.kwargs", {"tasks": {"hostile_module": 1}}),
    "kwargs with a module in a list": at("environment.kwargs", {"tasks": [["hostile_module"]]}),
    "kwargs with a file": at("environment.kwargs", {"xml_file": "/etc/passwd"}),
    "kwargs with a file beside": at("environment.kwargs", {"xml_file": "beside_the_run.xml"}),
    "kwargs with a library": at("environment.kwargs", {"engine": "beside-the-run.so"}),
    "a wrapper's target": at("environment.wrappers", [{"_target_": MODULE}]),
    "a wrapper's argument": at("environment.wrappers", [{"id": "RewardShape", "f": "os:system"}]),
    "a phase": at("training.phases", [{"name": "a", "hooks": [{"_target_": MODULE}]}]),
    "a callback": at("training.callbacks", {"own": {"_target_": MODULE}}),
    "evaluation": at("evaluation._target_", MODULE),
    "checkpoint": at("checkpoint._target_", MODULE),
    "logging": at("logging.wandb._target_", MODULE),
    "experiment": at("experiment._target_", MODULE),
    "at the top": at("_target_", MODULE),
    "an old key for the environment": old_keys(env_id="hostile_module:CartPole-v1", environment={}),
    "an old key for components": old_keys(controllers={"a": {"_target_": MODULE}}),
    "a target with a line break": at("components.a._target_", f"{MODULE}\nerror: all is well"),
    "a target with an escape": at("components.a._target_", "\x1b[2J" + MODULE),
    "a key with a line break": at("components", {"a\nerror: fine": {"_target_": MODULE}}),
    "a folder of a buffer, absolute": at("buffers", disk("/CANARY")),
    "a folder of a buffer, upwards": at("buffers", disk("a/../../b")),
    "a folder of a buffer, at home": at("buffers", disk("~/data")),
}  # fmt: skip


def prepare(run, name):
    rewrite(run, CODE[name])
    text = run.config_file.read_text()
    here = run.path.parent.parent
    text = text.replace(FILE, str(here / "hostile.py")).replace("CANARY", str(here / "canary"))
    run.config_file.write_text(text)
