"""Named points at which a test can kill, interrupt or starve the process; else they do nothing.

`RL_LAB_FAULT="ckpt.after_fsync:kill@3"` sends SIGKILL the third time that point is reached; several
faults are separated by commas. They are compiled in always, so what is tested is what runs.
"""

import errno
import os
import re
import signal
from collections import Counter

from rl_lab.core.errors import UserError

VARIABLE = "RL_LAB_FAULT"

_PLAN = re.compile(r"(?P<point>[\w.-]+):(?P<action>kill|term|error)(?:@(?P<count>[1-9]\d*))?")
_reached: Counter[str] = Counter()


def fault(point: str) -> None:
    """Do what the environment asks for at this point: nothing, in every run but a test."""
    plans = os.environ.get(VARIABLE)
    if plans is None:
        return
    _reached[point] += 1
    for plan in plans.split(","):
        # A misspelt plan would test nothing and look like success.
        match = _PLAN.fullmatch(plan.strip())
        if match is None:
            raise UserError(f"{VARIABLE}: '{plan}' is not of the form point:kill|term|error@count")
        if match["point"] == point and _reached[point] == int(match["count"] or 1):
            _strike(match["action"], point)


def reset() -> None:
    """Count from zero again, for tests that inject more than once in one process."""
    _reached.clear()


def _strike(action: str, point: str) -> None:
    if action == "error":
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (injected at {point})")
    os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGTERM)
