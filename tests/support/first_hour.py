"""What a new user reads first: README and docs/index.md, and what is typed for each command."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
INDEX = (ROOT / "docs" / "index.md").read_text()


def section(heading: str, page: str = README) -> str:
    return page.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def blocks(heading: str, language: str = "", page: str = README) -> list[str]:
    """The fenced blocks below a heading."""
    fence = rf"^```{language}\n(.*?)^```"
    return re.findall(fence, section(heading, page), re.MULTILINE | re.DOTALL)


def table_commands(text: str) -> list[str]:
    """The commands in the first column of a table; `bench envs\\|collect` are two."""
    found = []
    for row in re.findall(r"^\| (`rl-lab .*?) \| ", text.replace("\\|", "/"), re.MULTILINE):
        for command in re.findall(r"`rl-lab ([^`]+)`", row):
            first, *rest = command.split()
            choices = (
                rest[0].split("/") if rest and re.fullmatch(r"[a-z]+(/[a-z]+)+", rest[0]) else []
            )
            found += [f"{first} {each}" for each in choices] or [command]
    return found


SHORT = "--repeats 1 --seconds 0.05"
SWEEP = """\
base_config: CartPole-v1:random
sweep: {algorithm.collect_steps: [8, 16]}
fixed: {training.total_timesteps: 200}
"""
# For each command of the table what is typed, the exit code, and a part of what is then printed.
# Trainings and measurements are shortened; what changes the last run has a folder of its own.
TYPED: dict[str, list[tuple[str, int, str]]] = {
    "train": [
        ("train FrozenLake-v1:q_learning --total-timesteps 500 --runs-dir other", 0, "Try next:"),
        ("train --resume @last --runs-dir other", 0, "resumed from step"),
    ],
    "config": [("config CartPole-v1:ppo", 0, "# default")],
    "evaluate RUN": [("evaluate @best --episodes 5", 0, "(5 episodes")],
    "play RUN": [("play @last", 0, "video: ")],
    "ui [RUN/FOLDER]": [("ui --no-browser", 2, "pip install 'rl-lab[ui]'")],  # below with the extra
    "record RUN": [("record @last --episodes 1", 0, "episode 1: return")],
    "imagine RUN": [
        ("imagine @last", 2, "ppo has no world model"),
        ("train CartPole-v1:dreamer_v3 --total-timesteps 300 --debug --runs-dir dreams", 0, ""),
        ("imagine @last --runs-dir dreams", 0, "15 steps predicted"),
    ],
    "list": [("list", 0, "finished")],
    "show RUN": [("show @last", 0, "bit for bit")],
    "tag RUN +NAME": [("tag @last +paper", 0, "paper"), ("list --filter tag=paper", 0, "paper")],
    "compare RUNS": [("compare 'CartPole-*'", 0, "only 2 seeds"), ("compare", 2, "name runs")],
    "export RUNS": [("export 'CartPole-*'", 0, "| CartPole-v1 |")],
    "report RUNS": [("report @last", 0, "report.html")],
    "demo": [("demo --steps 4000", 0, "Done. The runs are in")],
    "dataset record": [("dataset record @last --episodes 4 -o small", 0, "transitions")],
    "dataset info": [("dataset info small", 0, "expert play")],
    "dataset merge": [("dataset merge small small -o twice", 0, "episodes      8")],
    "dataset split": [("dataset split twice --fraction 0.5 -o one -o two", 0, "two")],
    "dataset convert": [("dataset convert small --to npz -o files", 0, "converted: ")],
    "publish RUN": [
        ("publish @last --episodes 2 --dry-run published", 0, "written: published"),
        ("publish @last --repo me/policy", 2, "pip install 'rl-lab[hub]'"),
    ],
    "export-policy RUN": [
        ("export-policy @last --torchscript policy.pt", 0, "policy.pt: obs [N, 4] -> action"),
        ("export-policy @last --onnx policy.onnx", 2, "pip install 'rl-lab[onnx]'"),
    ],
    "wandb-dashboard": [
        ("wandb-dashboard --entity me --project lab", 2, "pip install 'rl-lab[wandb]'")
    ],
    "verify RUN": [("verify @last", 0, "IDENTICAL")],
    "sweep FILE": [("sweep tune.yaml", 2, "pip install 'rl-lab[tune]'")],  # below with the extra
    "cleanup": [
        ("cleanup --dry-run", 0, "kept whole"),
        ("train FrozenLake-v1:q_learning --total-timesteps 500 --runs-dir old", 0, ""),
        ("cleanup --keep-best 0 --keep-recent 0 --yes --runs-dir old", 0, "freed "),
    ],
    "envs": [("envs CartPole", 0, "CartPole-v1")],
    "algorithms": [("algorithms", 0, "ppo")],
    "replay-crash RUN": [
        ("train CartPole-v1:ppo algorithm.learning_rate=1e30 --runs-dir bad", 1, "replay-crash"),
        ("replay-crash @last --runs-dir bad", 1, "reproduced: update"),
    ],
    "check env": [("check env CartPole-v1", 0, "OK: CartPole-v1")],
    "check algorithm": [("check algorithm ppo", 0, "bit for bit")],
    "check install": [("check install", 0, "writable")],
    "new algorithm": [("new algorithm my_rule", 0, "rl-lab train")],
    "new env": [("new env my_room", 0, "rl-lab train")],
    "smoke [TEXT]": [("smoke FrozenLake --timesteps 100 --limit 1", 0, "2 ok, 0 failed")],
    "bench envs": [(f"bench envs CartPole-v1 {SHORT}", 0, "ratio: to sync")],
    "bench collect": [(f"bench collect CartPole-v1:ppo {SHORT}", 0, "environment only")],
    # A table has nothing to compile, which would take a minute.
    "bench update": [(f"bench update FrozenLake-v1:q_learning {SHORT}", 0, "update, eager")],
    # It trains for minutes in other libraries, and only in a clone.
    "bench peers": [("bench peers", 2, "in a source checkout")],
    "bench profile": [
        ("bench profile CartPole-v1:ppo training.total_timesteps=2000 --repeats 1", 0, "checkpoint")
    ],
    "bench networks": [
        ("bench networks --dry-run", 0, "40 cells x 3 seeds = 120 runs"),
        ("bench networks", 2, "pip install 'rl-lab[tune]'"),
    ],
    "index rebuild": [("index rebuild", 0, "2 runs in runs/index.sqlite")],
}
WITHOUT_JSON = {"ui [RUN/FOLDER]", "demo", "export RUNS", "new algorithm", "new env", "bench peers"}
