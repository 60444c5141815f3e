"""The process behind `WandbSink`: lines of JSON in, a W&B run out. Started by `wandb.py` only."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

from rl_lab.display.wandb import INSTALL, ORPHAN_SECONDS, STEP_AXIS


def serve(rows: IO[str], answers: int) -> int:
    """Open the run that the first line asks for, log every row, finish at the end of input."""

    def answer(**facts: object) -> None:
        os.write(answers, json.dumps(facts).encode() + b"\n")

    try:
        run = _open(json.loads(rows.readline())["init"])
        answer(ready=True, url=run.url)
        code = 1  # until a summary says that all is well
        for line in rows:
            message = json.loads(line)
            if "row" in message:
                run.log(message["row"])
            elif "video" in message:
                _log_video(run, **message["video"])
            elif "alert" in message:
                run.alert(**message["alert"], level="WARN")
            else:
                run.summary.update(message["summary"])
                code = 0 if message["summary"].get("status") == "finished" else 1
        run.finish(exit_code=code)
    except BrokenPipeError:  # the reader is gone
        return 1
    except BaseException as error:  # noqa: BLE001 - whatever it is, the trainer shows it as a line
        lines = str(error).strip().splitlines()
        answer(error=lines[0] if lines else type(error).__name__)
        return 1
    return 0


def _open(options: dict[str, Any]) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise RuntimeError(INSTALL) from error
    settings = wandb.Settings(silent=True, console="off", x_stats_pid=os.getppid())
    # Offline, the id alone is enough: `wandb sync` puts the parts of a resumed run together.
    if options["mode"] == "online":
        options = {**options, "resume": "allow"}
    run = wandb.init(**options, settings=settings)
    run.define_metric(STEP_AXIS)
    run.define_metric("*", step_metric=STEP_AXIS)
    return run


def _log_video(run: Any, *, step: int, file: str, name: str) -> None:
    import wandb

    kind: Any = Path(file).suffix[1:]  # "mp4" or "gif"
    run.log({STEP_AXIS: step, f"videos/{name}": wandb.Video(file, format=kind)})


def leave_with(trainer: int) -> None:
    """Do not outlive the trainer for long: it may be killed while W&B hangs."""
    while os.getppid() == trainer:
        time.sleep(1.0)
    time.sleep(ORPHAN_SECONDS)
    os.killpg(0, signal.SIGKILL)


def main() -> int:
    """Keep the pipes for ourselves: wandb must neither read the rows nor print into the answers."""
    rows = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    threading.Thread(target=leave_with, args=(os.getppid(),), daemon=True).start()
    return serve(rows, answers)


if __name__ == "__main__":
    sys.exit(main())
