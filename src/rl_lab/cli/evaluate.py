"""`rl-lab evaluate`: play a trained policy on seeds of its own."""

from pathlib import Path

from rl_lab.cli.printing import say, say_json, spread, warn


def run(
    reference: str,
    *,
    episodes: int,
    sample: bool,
    seed: int | None,
    trust: bool,
    runs_dir: Path,
    as_json: bool,
) -> int:
    """Print the return's mean and deviation."""
    from rl_lab import api

    result = api.evaluate(
        reference,
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
    say(
        f"return {spread(numbers)} ({numbers['episodes']} episodes, "
        f"length {numbers['length_mean']:,.1f}) · run {result.run} at step {result.step:,}"
    )
    return 0
