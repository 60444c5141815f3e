"""`rl-lab evaluate`: play a trained policy on seeds of its own."""

from typing import Annotated

import typer

from rl_lab.cli.arguments import RUNS, Json, Run, RunsDir, Trust, count
from rl_lab.cli.printing import say, say_json, spread, warn


def evaluate(
    run: Run,
    episodes: Annotated[
        int, typer.Option(parser=count(1), metavar="N", help="episodes to play")
    ] = 100,
    sample: Annotated[bool, typer.Option("--sample", help="sample actions, not the mode")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="other episodes")] = None,
    trust: Trust = False,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Play a trained policy on episodes that it has never seen."""
    from rl_lab import api

    result = api.evaluate(
        run,
        episodes=episodes,
        sample=sample,
        seed=seed,
        trust=trust,
        runs_dir=runs_dir,
        warn=lambda line: warn(f"warning: {line}"),
    )
    if as_json:
        say_json(result.to_tree())
        return 0
    numbers = result.summary()
    score = numbers.get("normalized_return")
    told = "" if score is None else f" · normalized {score:.1f}"
    say(
        f"return {spread(numbers)} ({numbers['episodes']} episodes, "
        f"length {numbers['length_mean']:,.1f}){told} · run {result.run} at step {result.step:,}"
    )
    return 0
