"""The model card of a published policy: what it scores, how to load it, how to check the score."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

from rl_lab.analysis.document import (
    Block,
    Code,
    Grid,
    Heading,
    Media,
    Paragraph,
    to_markdown,
)
from rl_lab.analysis.statistics import Interval

ANYBODY = "USER/NAME"  # until a repository is chosen
TASK = "reinforcement-learning"


@dataclass(frozen=True)
class Published:
    """What a card says."""

    repo: str | None
    environment: str
    algorithm: str
    seed: int
    step: int
    numbers: Mapping[str, float]  # of the evaluation
    interval: Interval  # 95 %, of the mean return
    command: str | None  # what trained it
    packages: str
    image: str | None  # files in the folder
    film: str | None

    @property
    def reference(self) -> str:
        """How it is named in commands."""
        return f"hf:{self.repo or ANYBODY}"

    @property
    def evaluate(self) -> str:
        """The command that reproduces the score."""
        return f"rl-lab evaluate {self.reference} --episodes {self.numbers['episodes']:.0f}"


def card(facts: Published) -> str:
    """README.md: metadata for the hub, then text for people."""
    head = yaml.safe_dump(metadata(facts), sort_keys=False, allow_unicode=True, width=100)
    title = f"{facts.algorithm} on {facts.environment}"
    return f"---\n{head}---\n\n{to_markdown(title, _blocks(facts))}"


def metadata(facts: Published) -> dict[str, Any]:
    """The hub's own schema: tags, and results that it shows and ranks."""
    numbers, (low, high) = facts.numbers, facts.interval
    mean, deviation = numbers["return_mean"], numbers["return_std"]
    episodes = int(numbers["episodes"])
    return {
        "library_name": "rl-lab",
        "pipeline_tag": TASK,
        "tags": [facts.environment, facts.algorithm, TASK, f"deep-{TASK}", "rl-lab"],
        "model-index": [
            {
                "name": f"{facts.algorithm}-{facts.environment}",
                "results": [
                    {
                        "task": {"type": TASK, "name": TASK},
                        "dataset": {"type": facts.environment, "name": facts.environment},
                        "metrics": [
                            {
                                "type": "mean_reward",
                                "value": f"{mean:.2f} +/- {deviation:.2f}",
                                "name": "mean_reward",
                                "verified": False,
                            },
                            {
                                "type": "return_mean",
                                "value": round(mean, 4),
                                "name": f"mean return over {episodes} episodes, 95 % interval "
                                f"[{low:.2f}, {high:.2f}]",
                                "args": {
                                    "low": round(low, 4),
                                    "high": round(high, 4),
                                    "level": 0.95,
                                    "episodes": episodes,
                                },
                                "verified": False,
                            },
                        ],
                    }
                ],
            }
        ],
    }


def _blocks(facts: Published) -> list[Block]:
    numbers, (low, high) = facts.numbers, facts.interval
    rows = [
        ["mean return", f"{numbers['return_mean']:,.2f} [{low:,.2f}, {high:,.2f}]"],
        ["standard deviation over episodes", f"{numbers['return_std']:,.2f}"],
        ["lowest, highest", f"{numbers['return_min']:,.2f}, {numbers['return_max']:,.2f}"],
        ["mean length", f"{numbers['length_mean']:,.1f}"],
        ["episodes, none of them seen in training", f"{numbers['episodes']:.0f}"],
        ["environment steps of training", f"{facts.step:,}"],
        ["seed", str(facts.seed)],
    ]
    pictures: list[Block] = []
    if facts.film is not None:
        pictures.append(Media("the policy at play", facts.film, None))
    if facts.image is not None:
        pictures.append(Media("learning curves of this seed", facts.image, None))
    policy = f'policy = rl_lab.load_policy("{facts.reference}")'
    load = f"import rl_lab\n\n{policy}\naction = policy.act(obs)"
    training: list[Block] = [Code(facts.command)] if facts.command else []
    if facts.packages:
        training.append(Paragraph(f"With {facts.packages}."))
    return [
        Paragraph(
            f"A policy for {facts.environment}, trained with {facts.algorithm} in RL Lab. It is "
            "one seed: its interval is over episodes, not over trainings."
        ),
        *pictures,
        Heading("Results"),
        Grid(["", "value"], rows),
        Heading("Load it"),
        Code(f"pip install 'rl-lab[hub]'\nrl-lab play {facts.reference}"),
        Code(load),
        Paragraph(
            "No code of this repository is run: tensors are safetensors, the rest is JSON and "
            "YAML, every file is checked against rl-lab.json, and the configuration may use "
            "registered names only."
        ),
        Heading("Check the score"),
        Paragraph(
            "This plays the same episodes. On the same processor and package versions, the returns "
            "are those of results.json bit for bit."
        ),
        Code(facts.evaluate),
        Heading("How it was trained"),
        *(training or [Paragraph("See config.yaml.")]),
        Paragraph("config.yaml has every option, provenance.json where it comes from."),
    ]
