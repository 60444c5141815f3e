"""`rl-lab imagine`: what a saved world model foresees, beside what happens."""

from pathlib import Path

from rl_lab.cli.printing import say, say_json, warn


def run(
    reference: str,
    *,
    horizon: int,
    output: Path | None,
    seed: int | None,
    runs_dir: Path,
    as_json: bool,
) -> int:
    """Write the film, the picture or the numbers, and print where."""
    from rl_lab.analysis.imagining import default_file, imagine_run, write_imagined
    from rl_lab.run import policy

    loaded = policy.load(reference, runs_dir, seed=seed, warn=lambda line: warn(f"warning: {line}"))
    try:
        imagined = imagine_run(loaded, horizon)
        files = write_imagined(imagined, output or default_file(loaded, imagined))
    finally:
        loaded.context.train_environment.close()
    if as_json:
        names = [str(each) for each in files]
        said = {"run": loaded.run.id, "step": loaded.step, "files": names}
        say_json({**said, **imagined.to_tree()})
        return 0
    say(f"{imagined.horizon} steps foreseen · run {loaded.run.id} at step {loaded.step:,}")
    for file in files:
        say(f"written: {file}")
    return 0
