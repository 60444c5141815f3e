"""`rl-lab replay-crash`: meet a NaN again, in a process of its own."""

from typing import Annotated

import typer

from rl_lab.cli.arguments import RUNS, Json, RunsDir, Trust
from rl_lab.cli.printing import say, say_json


def replay_crash(
    dump: Annotated[
        str, typer.Argument(help="a folder RUN/crash/step_…, or a run: its newest dump")
    ],
    trust: Trust = False,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Reproduce a numerical crash from its dump (exit code 1: it fails again, 0: it does not)."""
    from rl_lab.run.crash_replay import replay

    found = replay(dump, runs_dir, trust=trust)
    if as_json:
        say_json(
            {
                "dump": str(found.dump),
                "hook": found.hook,
                "step": found.step,
                "expected": found.expected,
                "error": None if found.error is None else str(found.error),
                "reproduced": found.reproduced,
            }
        )
        return 0 if found.error is None else 1
    where = f"{found.hook} at step {found.step:,}"
    if found.error is None:
        say(f"did not reproduce: {where} went well this time; the dump says: {found.expected}")
        return 0
    if found.reproduced:
        say(f"reproduced: {where} failed again")
    else:
        say(f"{where} failed in another way; the dump says: {found.expected}")
    raise found.error
