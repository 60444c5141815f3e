"""`rl-lab replay-crash`: meet a NaN again, in a process of its own."""

from pathlib import Path

from rl_lab.cli.printing import say, say_json


def run(reference: str, *, trust: bool, runs_dir: Path, as_json: bool) -> int:
    """Exit code 1 if it fails again (with the same error, or another), 0 if it goes well."""
    from rl_lab.run.crash_replay import replay

    found = replay(reference, runs_dir, trust=trust)
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
