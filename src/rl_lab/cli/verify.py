"""`rl-lab verify`: run it again beside, and say what differs first."""

import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from rl_lab.cli.arguments import RUNS, Json, Run, RunsDir, Trust, count
from rl_lab.cli.printing import pairs, say, say_json, warn

if TYPE_CHECKING:
    from rl_lab.analysis.verify import Verdict

SECONDS = 1.0  # between two looks at how far it is


def verify(
    run: Run,
    steps: Annotated[
        int | None,
        typer.Option(parser=count(1), metavar="N", help="environment steps to run again"),
    ] = None,
    start: Annotated[
        int | None,
        typer.Option("--from", parser=count(1), metavar="STEP", help="begin with this checkpoint"),
    ] = None,
    trust: Trust = False,
    runs_dir: RunsDir = RUNS,
    as_json: Json = False,
) -> int:
    """Repeat a run and name the first difference (exit code 0: none, 1: one, 2: not checked)."""
    from rl_lab.analysis.verify import verify

    progress = _Progress()
    watch = progress.show
    found = verify(run, runs_dir, steps=steps, start=start, trust=trust, tell=warn, watch=watch)
    progress.clear()
    if as_json:
        say_json(
            {
                "id": found.run.id,
                "path": str(found.run.path),
                "identical": found.identical,
                "from": found.start,
                "to": found.end,
                "rows": found.rows,
                "checkpoints": found.checkpoints,
                "difference": asdict(found.difference) if found.difference else None,
                "reasons": found.reasons,
            }
        )
    else:
        say(_described(found))
    return 0 if found.identical else 1


def _described(found: "Verdict") -> str:
    states = ", ".join(f"{step:,}" for step in found.checkpoints) or "none"
    seen = {
        "steps": f"{found.start:,} to {found.end:,}",
        "rows of metrics": f"{found.rows:,} equal byte for byte",
        "checkpoints": f"{states}{' equal bit for bit' if found.checkpoints else ''}",
    }
    first = found.difference
    if first is None:
        lines = [f"IDENTICAL: {found.run.path.name} is the same when it is run again", pairs(seen)]
        return "\n".join([*lines, *(f"note: {reason}" for reason in found.reasons)])
    more = f" (and {first.others} more there)" if first.others else ""
    lines = [
        f"DIFFERS at step {first.step:,}: {first.kind} {first.name}{more}",
        pairs({"recorded": _exact(first.recorded), "again": _exact(first.again), **seen}),
    ]
    reasons = found.reasons or [
        "none is known: the code, the versions and the machine are the same"
    ]
    return "\n".join([*lines, *(f"reason: {reason}" for reason in reasons)])


def _exact(value: object) -> str:
    """All digits: two numbers that differ must not look the same."""
    return value if isinstance(value, str) else repr(value)


class _Progress:
    """One line in a terminal that is written over; nothing elsewhere."""

    def __init__(self) -> None:
        self.next = time.monotonic() + SECONDS
        self.width = 0

    def show(self, step: int, last: int) -> None:
        """How far it is, once a second."""
        if not sys.stderr.isatty() or time.monotonic() < self.next:
            return
        self.next = time.monotonic() + SECONDS
        text = f"step {step:,} of {last:,} ({100 * step // max(last, 1)} %)"
        sys.stderr.write(f"\r{text.ljust(self.width)}")
        sys.stderr.flush()
        self.width = len(text)

    def clear(self) -> None:
        """Take the line away."""
        if self.width:
            sys.stderr.write(f"\r{' ' * self.width}\r")
