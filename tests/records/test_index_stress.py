"""Many writers of one index, killed in the middle: what was acknowledged is there."""

import logging
import multiprocessing
import os
import random
import signal
import time

import pytest

from rl_lab.records.index import Index

FORK = multiprocessing.get_context("fork")


class Strict(logging.Handler):
    """An index that was not updated is only a warning: here it ends the writer."""

    def emit(self, record):
        os.write(2, f"{record.getMessage()}\n".encode())
        os._exit(3)


def _write(root, worker, count):
    """Rows one by one, from where the last life ended; each is acknowledged after it is written."""
    logging.getLogger("rl_lab.records.index").addHandler(Strict())
    with (root / f"ack-{worker}").open("ab", buffering=0) as acknowledged:
        for number in range(acknowledged.tell() // 8, count):
            Index(root).upsert({"id": f"{worker}-{number}", "seed": worker, "env_steps": number})
            acknowledged.write(b"%7d\n" % number)


def check_killed_writers(root, *, writers, rows, kills, chance):
    def start(worker):
        process = FORK.Process(target=_write, args=(root, worker, rows))
        process.start()
        return process

    living = {worker: start(worker) for worker in range(writers)}
    killed = 0
    while living:
        time.sleep(chance.uniform(0.01, 0.05))
        for worker, process in list(living.items()):
            if process.exitcode is None:
                continue
            assert process.exitcode in (0, -signal.SIGKILL)
            del living[worker]
            if process.exitcode:
                living[worker] = start(worker)
        busy = [process for process in living.values() if process.exitcode is None]
        if killed < kills and busy:
            os.kill(chance.choice(busy).pid, signal.SIGKILL)
            killed += 1
    assert killed == kills
    found = {row["id"]: (row["seed"], row["env_steps"]) for row in Index(root).rows()}
    assert found == {f"{w}-{n}": (w, n) for w in range(writers) for n in range(rows)}


def test_four_writers_and_five_kills_lose_nothing(tmp_path):
    check_killed_writers(tmp_path, writers=4, rows=50, kills=5, chance=random.Random(0))


@pytest.mark.slow
def test_sixty_four_writers_and_fifty_kills_lose_nothing(tmp_path):
    check_killed_writers(tmp_path, writers=64, rows=1000, kills=50, chance=random.Random(1))
