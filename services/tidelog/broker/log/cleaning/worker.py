"""The worker process: reads jobs from its standard input, one per line, and answers on its standard output.

It is a separate program (`python -m`), so it does not share the broker's memory. It ends when its standard
input ends, that is, when the broker stops it or dies.
"""

from __future__ import annotations

import gc
import os
import queue
import sys
import threading
import time
from typing import Final

from tidelog.broker.log.cleaning.cleaner import clean
from tidelog.broker.log.cleaning.cleaning_job import (
    CleaningAnswer,
    CleaningFailed,
    CleaningJob,
    encode_answer,
)

NICENESS: Final = 5
"""The worker runs at a lower priority than the brokers, because compaction can wait and a produce cannot."""


class Throttle:
    """Limits the number of bytes that a job reads and writes per second."""

    def __init__(self, max_bytes_per_second: float) -> None:
        self._rate = max_bytes_per_second
        self._free_at = time.monotonic()

    def __call__(self, size: int) -> None:
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + size / self._rate
        if self._free_at - now > 0.01:
            time.sleep(self._free_at - now)


def main() -> None:
    os.nice(NICENESS)
    gc.disable()  # a job creates millions of keys and tuples, but no reference cycles
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_take_jobs, args=(jobs,), daemon=True).start()
    while True:
        _work(jobs.get())


def _take_jobs(jobs: queue.SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        jobs.put(line)
    os._exit(0)  # the broker is gone or has stopped the worker: end the other thread, too


def _work(line: bytes) -> None:
    job = CleaningJob.decode(line)
    try:
        for answer in clean(job, Throttle(job.max_bytes_per_second)):
            _tell(answer)
    except OSError as error:
        _tell(CleaningFailed(str(error), is_damage=False))
    except (ValueError, IndexError) as error:
        _tell(CleaningFailed(str(error), is_damage=True))


def _tell(answer: CleaningAnswer) -> None:
    sys.stdout.buffer.write(encode_answer(answer))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
