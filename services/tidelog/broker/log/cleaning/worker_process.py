"""The broker's end of a cleaning worker: starts it when there is a job, reads its answers, ends it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from tidelog.broker.log.cleaning.cleaning_job import CleaningAnswer, CleaningJob, decode_answer

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""An answer names the segments that are replaced."""
_MODULE: Final = "tidelog.broker.log.cleaning.worker"


class WorkerEndedError(RuntimeError):
    """The worker died in the middle of a job; the message says how."""


class WorkerProcess:
    """One job at a time. In a session of its own: Ctrl-C in a terminal is the broker's to act on."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def clean(self, job: CleaningJob) -> AsyncIterator[CleaningAnswer]:
        """The answers to a job; who stops listening before the last calls `stop`.

        Raises WorkerEndedError, OSError.
        """
        process = self._process or await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(job.encode())
            await process.stdin.drain()
        except ConnectionError as error:
            raise WorkerEndedError(f"the cleaning worker takes no job: {error}") from error
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
        """At once, whatever it is at; it has written nothing that anyone looks at."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
