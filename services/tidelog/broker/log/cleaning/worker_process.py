"""The broker's side of a cleaning worker: starts the process, sends jobs, reads answers and ends it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from tidelog.broker.log.cleaning.cleaning_job import CleaningAnswer, CleaningJob, decode_answer

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""An answer has a base offset for each segment that is replaced."""
_MODULE: Final = "tidelog.broker.log.cleaning.worker"


class WorkerEndedError(RuntimeError):
    """The worker died during a job; the message gives the reason."""


class WorkerProcess:
    """A worker process for one job at a time.

    It runs in a separate session, so that Ctrl-C in a terminal reaches only the broker.
    """

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def clean(self, job: CleaningJob) -> AsyncIterator[CleaningAnswer]:
        """Sends a job and yields the answers. A caller that stops before the last answer calls `stop`.

        Raises WorkerEndedError, OSError.
        """
        process = self._process or await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(job.encode())
            await process.stdin.drain()
        except ConnectionError as error:
            raise WorkerEndedError(f"the cleaning worker does not accept a job: {error}") from error
        while True:
            line = await process.stdout.readline()
            if not line:
                raise WorkerEndedError(f"the cleaning worker ended with {await process.wait()}")
            yield decode_answer(line)

    async def _start(self) -> asyncio.subprocess.Process:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            _MODULE,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=MAX_ANSWER_BYTES,
            start_new_session=True,
        )
        return self._process

    async def stop(self) -> None:
        """Kills the process. Files that it was writing are not part of the log."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
