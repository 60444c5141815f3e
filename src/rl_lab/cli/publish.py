"""`rl-lab publish`: put a trained policy on the Hugging Face hub, or into a folder."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from rl_lab.cli.arguments import RUNS, Json, Run, RunsDir, count
from rl_lab.cli.printing import say, say_json, spread, warn
from rl_lab.core.errors import UserError


def publish(
    run: Run,
    repo: Annotated[
        str | None,
        typer.Option(metavar="USER/NAME", help="where; else your own USER/ALGORITHM-ENVIRONMENT"),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="only you can see it")] = False,
    dry_run: Annotated[
        Path | None,
        typer.Option("--dry-run", metavar="FOLDER", help="write the folder, upload nothing"),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="best|last|STEP", help="instead of RUN:best")
    ] = None,
    episodes: Annotated[
        int, typer.Option(parser=count(2), metavar="N", help="episodes that measure it")
    ] = 100,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Publish a trained policy on the Hugging Face hub: policy, config, results and a card."""
    from rl_lab.hub.bundle import write_bundle
    from rl_lab.hub.upload import check_repository, own_repository, upload
    from rl_lab.records.run_directory import find_run

    if checkpoint is not None:
        if find_run(run, runs_dir)[1] is not None:
            raise UserError(
                f"'{run}' names a checkpoint, and so does --checkpoint: give one of them"
            )
        run = f"{run}:{checkpoint}"
    if repo is not None:
        check_repository(repo)
    elif dry_run is None:
        repo = own_repository(*_title(run, runs_dir))
    with TemporaryDirectory() as draft:
        made = write_bundle(
            run,
            runs_dir,
            Path(draft) / "policy" if dry_run is None else dry_run,
            repo=repo,
            episodes=episodes,
            warn=lambda line: warn(f"warning: {line}"),
        )
        address = None
        if dry_run is None:
            assert repo is not None
            address = upload(made.folder, repo, private=private)
    if as_json:
        numbers = made.evaluation.summary()
        say_json({**numbers, "repo": repo, "address": address, "command": made.facts.evaluate})
        return 0
    say(f"return {spread(made.evaluation.summary())} ({episodes} episodes)")
    say(f"written: {made.folder}" if address is None else f"published: {address}")
    say(f"check it with: {made.facts.evaluate}")
    return 0


def _title(run: str, runs_dir: Path) -> tuple[str, str]:
    """Algorithm and environment of a run."""
    from rl_lab.records.config_file import at, load_tree
    from rl_lab.records.run_directory import find_run

    tree = load_tree(find_run(run, runs_dir)[0].config_file)
    return str(at(tree, "algorithm", "name")), str(at(tree, "environment", "id"))
