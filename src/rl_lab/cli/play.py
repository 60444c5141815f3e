"""`rl-lab play`: watch a trained policy, in a window or as a film."""

from pathlib import Path
from typing import Any

from rl_lab.cli.printing import cell, say, say_json, warn


def run(
    reference: str,
    *,
    episodes: int,
    sample: bool,
    seed: int | None,
    max_steps: int | None,
    video: Path | None,
    trust: bool,
    runs_dir: Path,
    as_json: bool,
) -> int:
    """Print a line for each episode, then the mean and where the film is."""
    from rl_lab import api

    def tell(number: int, episode: Any) -> None:
        if not as_json:
            end = "ended" if episode.terminated else "truncated"
            say(f"episode {number}: return {cell(episode.total)}, {episode.length:,} steps, {end}")

    result = api.play(
        reference,
        episodes=episodes,
        sample=sample,
        seed=seed,
        max_steps=max_steps,
        video=video,
        trust=trust,
        runs_dir=runs_dir,
        tell=tell,
        warn=lambda line: warn(f"warning: {line}"),
    )
    if as_json:
        say_json(result.to_tree())
    else:
        count = len(result.played)
        plural = "episode" if count == 1 else "episodes"
        mean = cell(result.return_mean)
        say(f"return {mean} ({count} {plural}) · run {result.run} at step {result.step:,}")
        if result.video is not None:
            say(f"video: {result.video}")
    if result.exit_code:
        warn("interrupted")
    return result.exit_code
