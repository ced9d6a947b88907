"""One user's access to the cluster: connections, readers, and the latest readings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from tidelog.client.cluster import Cluster
from tidelog.client.errors import AuthenticationFailedError, ClientError
from tidelog.console.cluster_reader import ClusterReader, Connect
from tidelog.console.group_reader import GroupReader
from tidelog.console.health_sampler import HealthSampler
from tidelog.console.shared_reading import MAX_SUBJECTS, SharedReadings
from tidelog.console.silent_brokers import SilentBrokers
from tidelog.kernel.instants import MonotonicMs, WallMs

T = TypeVar("T")


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
        self.reader = ClusterReader(connect, wall, monotonic, self._silent)
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
