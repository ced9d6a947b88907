"""One user's access to the cluster: connections, readers, and the latest readings.

All viewers of a page share its readings: there is at most one in an interval, and none if nobody looks. Only
the health of the cluster is sampled while nobody looks, so that the history of the last hour has no gaps.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from tidelog.client.cluster import Cluster
from tidelog.client.errors import AuthenticationFailedError, ClientError
from tidelog.console.core.isr_history import SAMPLE_INTERVAL_MS
from tidelog.console.group_reader import GroupReader
from tidelog.console.page_reader import Connect, PageReader
from tidelog.console.readings import SilentBrokers, is_denial, is_not_found
from tidelog.kernel.instants import MonotonicMs, WallMs
from tidelog.model.errors import KafkaError

MAX_SUBJECTS: Final = 512
"""The most readings that are kept. The one that was looked at longest ago is forgotten first."""
T = TypeVar("T")


class HealthSampler:
    """Samples once in an interval from `start` to `close`. The history has a gap where the cluster did not
    answer.
    """

    def __init__(
        self, sample: Callable[[int], None], worker: Executor, interval_ms: int = SAMPLE_INTERVAL_MS
    ) -> None:
        """`sample` gets the interval, and runs in a thread of `worker`."""
        self._sample = sample
        self._worker = worker
        self._interval_ms = interval_ms
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="console-health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the samples, and waits for one that is running."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(ClientError, KafkaError):  # the next sample may succeed
                self._worker.submit(self._sample, self._interval_ms).result()
            self._stopping.wait(self._interval_ms / 1000)


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """A value with the time of its reading. After a failure, it is the last value, or None, and the error.
    The value is None after an error that says that it no longer exists or may not be seen.
    """

    value: T | None
    read_at_ms: WallMs | None
    error: ClientError | KafkaError | None


class _Subject:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.reading: Reading[Any] = Reading(None, None, None)
        self.due_ms: MonotonicMs | None = None


class SharedReadings:
    """The latest readings, by subject."""

    def __init__(
        self,
        interval_ms: int,
        run: Callable[[Callable[[], Any]], Awaitable[Any]],
        wall: Callable[[], WallMs],
        monotonic: Callable[[], MonotonicMs],
        *,
        max_subjects: int = MAX_SUBJECTS,
    ) -> None:
        """`run` runs a blocking call elsewhere and returns its result."""
        self._max_subjects = max_subjects
        self.interval_ms = interval_ms
        self._run = run
        self._wall = wall
        self._monotonic = monotonic
        self._subjects: OrderedDict[Hashable, _Subject] = OrderedDict()

    def __len__(self) -> int:
        return len(self._subjects)

    async def get(self, subject: Hashable, read: Callable[[], T]) -> Reading[T]:
        """Returns the reading of a subject, and reads it first if the last one is older than the interval.

        Viewers that ask at the same time wait for the same reading. Errors are kept for an interval, too, so
        that a broker that is in trouble is not asked more often than one that is well.
        """
        entry = self._subjects.setdefault(subject, _Subject())
        self._subjects.move_to_end(subject)
        if len(self._subjects) > self._max_subjects:
            self._subjects.popitem(last=False)
        async with entry.lock:
            if entry.due_ms is None or self._monotonic() >= entry.due_ms:
                entry.due_ms = MonotonicMs(self._monotonic() + self.interval_ms)
                before = entry.reading
                try:
                    entry.reading = Reading(await self._run(read), self._wall(), None)
                except (ClientError, KafkaError) as error:
                    if is_denial(error) or is_not_found(error):
                        before = Reading(None, None, None)
                    entry.reading = Reading(before.value, before.read_at_ms, error)
            return entry.reading


class AccessEndedError(ClientError):
    """The session has ended, so that its connections are no longer used."""

    def __init__(self) -> None:
        super().__init__("the session has ended")


class ClusterAccess:
    """The access of a session, or of everybody if the console has no login. `user` is then empty.
    `can_log_out` is false if each request has a login of its own.

    It ends when the cluster refuses the user of a session, such as after a change of the password.
    """

    def __init__(
        self,
        connect: Connect,
        interval_ms: int,
        wall: Callable[[], WallMs],
        monotonic: Callable[[], MonotonicMs],
        *,
        user: str = "",
        can_log_out: bool = True,
        max_subjects: int = MAX_SUBJECTS,
    ) -> None:
        self.user = user
        self.sharer: Hashable = user
        """The user in the budgets of the console."""
        self.can_log_out = can_log_out
        self.has_ended = False
        self._connect = connect
        self._silent = SilentBrokers(monotonic)
        self.reader = PageReader(connect, wall, monotonic, self._silent)
        self.groups = GroupReader(wall, monotonic, self._silent)
        # One thread, because the client is not thread-safe, and so that a user asks one thing at a time.
        self._worker = ThreadPoolExecutor(1, "console-reader")
        self._sampler: HealthSampler | None = None
        self.readings = SharedReadings(interval_ms, self.run, wall, monotonic, max_subjects=max_subjects)

    def sample_health(self, interval_ms: int) -> None:
        """Samples the health of the replicas once in an interval until `end`, also while nobody looks."""
        self._sampler = HealthSampler(self.reader.sample_health, self._worker, interval_ms)
        self._sampler.start()

    async def run(self, call: Callable[[], T]) -> T:
        """Runs a call of the readers in their thread. Raises what it raises, and AccessEndedError."""
        return await self._run_in(self._worker, call)

    async def search(self, searchers: Executor, search: Callable[[Cluster, set[int]], T]) -> T:
        """Runs a search in another thread, with a connection of its own and the brokers not to ask.

        Raises what it raises, and AccessEndedError.
        """

        def run() -> T:
            with self._silent.asking() as silent, self._connect(self.reader.known) as cluster:
                return search(cluster, silent)

        return await self._run_in(searchers, run)

    async def _run_in(self, threads: Executor, call: Callable[[], T]) -> T:
        if self.has_ended:
            raise AccessEndedError
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, call)
        except AuthenticationFailedError:
            if self.user:
                self.end()
            raise

    def end(self, *, waits: bool = False) -> None:
        """Closes the connections, after the calls that have begun. With `waits`, it returns after that."""
        if not self.has_ended:
            self.has_ended = True
            if self._sampler is not None:
                self._sampler.close()
            self._worker.submit(self.reader.close)
        self._worker.shutdown(wait=waits)
