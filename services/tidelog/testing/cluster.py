"""A cluster inside the process of a test. Its event loop runs in a thread of its own."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
import threading
import warnings
import weakref
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from tidelog.embedded.cluster import EmbeddedCluster
from tidelog.kernel.slices import TaskSet
from tidelog.model.errors import ErrorCode
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.testing._interception import INTERNAL_LISTENER, Faults, FetchWatch
from tidelog.testing.blocking import loop_advice
from tidelog.testing.clock import MovableClock, MovableLoop
from tidelog.testing.faults import Fault, error_code
from tidelog.testing.quiet_log import log_quietly
from tidelog.testing.rebalance import Rebalance, begin_rebalance
from tidelog.testing.requests import (
    Broker,
    Keyed,
    Record,
    RequestFailedError,
    Requests,
    Value,
    require_partition,
)
from tidelog.wire.messages.metadata import MetadataResponseBroker

HOST: Final = "127.0.0.1"
MAX_BROKERS: Final = 16
_CALL_TIMEOUT_S: Final = 120.0
"""The time after which a call of a test fails although the event loop has not answered."""
_INTERNAL_TOPICS: Final = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
_MAX_REPLICAS: Final = 3
_CHOSEN: Final = frozenset(
    {"node.id", "broker.id", "log.dirs", "log.dir", "listeners", "inter.broker.listener.name"}
)
"""The settings that the cluster gives its brokers itself."""
_NOT_RUNNING: Final = "the cluster is not running; use it with `with`, or call start()"

T = TypeVar("T")


class Cluster:
    """A cluster of brokers in this process, for tests. Any client in any language connects to `bootstrap`.

    Use it with `with`, or call `start` and `close`. Methods may be called from any thread, and return when
    the cluster has done what they ask. They raise RequestFailedError if it refuses that.
    """

    def __init__(self, brokers: int = 1, *, settings: Mapping[str, str] | None = None) -> None:
        """`settings` are settings of brokers by Kafka's names. They override the defaults for tests. Raises
        ValueError, and SettingError for a wrong setting.
        """
        if not 1 <= brokers <= MAX_BROKERS:
            raise ValueError(f"a cluster for tests has 1 to {MAX_BROKERS} brokers, not {brokers}")
        self._given = _texts(settings or {})
        chosen = sorted(_CHOSEN & self._given.keys())
        if chosen:
            raise ValueError(f"the cluster chooses {', '.join(chosen)} itself; leave it out of the settings")
        self._broker_ids = tuple(range(1, brokers + 1))
        self._ports: list[socket.socket] = []
        self._directory = Path()
        self._settings: list[BrokerSettings] = []
        self._clock = MovableClock()
        self._faults = Faults()
        self._requests = Requests()
        self._rebalances: TaskSet[None] = TaskSet()
        self._loop: MovableLoop | None = None
        self._thread: threading.Thread | None = None
        self._workers = _new_workers()
        self._cluster: EmbeddedCluster | None = None

    def __repr__(self) -> str:
        where = self.bootstrap if self._ports else "not running"
        return f"<Cluster of {len(self._broker_ids)} brokers: {where}>"

    # -- life

    def start(self) -> Cluster:
        """Starts the brokers, and returns when clients can connect."""
        if self._loop is not None:
            raise RuntimeError("the cluster has started already")
        log_quietly()
        self._directory = Path(tempfile.mkdtemp(prefix="tidelog-testing-"))
        self._loop = MovableLoop(self._clock)
        self._workers = _new_workers()
        self._loop.set_default_executor(self._workers)
        # The thread keeps this object alive, so a cluster that was not closed is noticed when Python exits.
        self._thread = threading.Thread(
            target=self._run, args=(self._loop,), name="tidelog-testing", daemon=True
        )
        self._when_left_open = weakref.finalize(self, _remove_left_open, self._directory, self._ports)
        self._thread.start()
        try:
            self._ports += [_reserved_port() for _ in range(2 * len(self._broker_ids))]
            self._settings = [self._settings_of(broker_id) for broker_id in self._broker_ids]
            self._call(self._start())
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stops the brokers and deletes their data. A second call does nothing."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        try:
            self._call(self._stop())
        finally:
            self._loop = self._thread = None
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_CALL_TIMEOUT_S)
            self._workers.shutdown()
            loop.close()
            self._when_left_open.detach()
            _remove(self._directory, self._ports)

    def _run(self, loop: MovableLoop) -> None:
        loop.run_forever()

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers for clients, as `HOST:PORT,HOST:PORT`. They stay the same over
        `reset` and over restarts of brokers. Raises RuntimeError if the cluster does not run.
        """
        if not self._ports:
            raise RuntimeError(_NOT_RUNNING)
        return ",".join(f"{HOST}:{self._port(broker_id)}" for broker_id in self._broker_ids)

    @property
    def brokers(self) -> tuple[int, ...]:
        """The ids of the brokers that run."""
        return () if self._cluster is None else tuple(sorted(self._cluster.brokers))

    def reset(self) -> None:
        """Starts again with an empty cluster: no topics, groups, settings or faults, and the machine's clock.
        The addresses stay the same. Make clients again too: they remember ids that the cluster has forgotten.
        """
        self._call(self._reset())

    def clean(self) -> None:
        """Deletes all topics, groups, users, ACLs and quotas, and ends all faults, as the fixture does after
        each test. If a group still has members, a transaction is open, a broker is down, a setting of the
        brokers was changed or the clock was moved, it resets.
        """
        self._call(self._clean())

    # -- topics and records

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> str:
        """Creates a topic and returns its name. It has three replicas, or one on each of fewer brokers."""
        replicas = replication_factor or min(_MAX_REPLICAS, len(self._broker_ids))
        self._call(self._requests.create_topic(name, partitions, replicas, _texts(configs or {})))
        return name

    def produce(
        self, topic: str, *values: Keyed, key: Value = None, partition: int | None = None
    ) -> list[Record]:
        """Appends one record for each of `values`, and returns the records.

        A value is bytes, a text (as UTF-8), None, or a pair of key and value. `key` is the key of values
        without one. Records with a key go to the partition to which Kafka's clients send them; others go to
        the partitions in turn, or to `partition`. A topic that does not exist is created.
        """
        if not values:
            return []
        now_ms = self._clock.wall_ms()
        return self._call(self._requests.produce(topic, values, key, partition, now_ms))

    def records(self, topic: str) -> list[Record]:
        """Returns all committed records of a topic in the order of their partitions and offsets."""
        return self._call(self._requests.records(topic))

    def leader(self, topic: str, partition: int = 0) -> int:
        """Returns the id of the broker that leads a partition."""
        found = self._call(self._requests.topic(topic))
        require_partition(found, partition)
        return next(part.leader_id for part in found.partitions if part.partition_index == partition)

    def wait_until_fetched(self, topic: str, timeout_s: float = 30.0) -> None:
        """Waits until consumers have all records of a topic: they ask for the one after the last of each
        partition. Whether the program under test has handled the records, only the program knows. Raises
        TimeoutError.
        """
        if left := self._call(self._until_fetched(topic, timeout_s), timeout_s):
            raise TimeoutError(
                f"no consumer has fetched all records of {topic} within {timeout_s:g} s (partitions left: "
                f"{', '.join(map(str, left))}){loop_advice()}"
            )

    # -- faults

    def kill_leader(self, topic: str, partition: int = 0) -> int:
        """Kills the broker that leads a partition, and returns its id. `start_broker` starts it again."""
        broker_id = self.leader(topic, partition)
        self.kill_broker(broker_id)
        return broker_id

    def kill_broker(self, broker_id: int) -> None:
        """Ends a broker without warning: all its connections end, and it hands nothing over."""
        self._call(self._kill(broker_id))

    def start_broker(self, broker_id: int) -> None:
        """Starts a broker that was killed, with its data and its address."""
        self._call(self._start_again(broker_id))

    def pause(self, broker_id: int) -> None:
        """Makes a broker answer nothing until `resume`. Its connections stay open, new ones are accepted, and
        it keeps its registration, so its partitions keep their leader.
        """
        self._require_running(broker_id)
        self._call(self._on_loop(self._faults.pause, broker_id))
        self._update_brokers()

    def resume(self, broker_id: int) -> None:
        """Ends a pause. The broker answers the requests that it has held back."""
        self._require_known(broker_id)
        self._call(self._on_loop(self._faults.resume, broker_id))
        self._update_brokers()

    def disconnect(self, client_id: str) -> int:
        """Closes all connections of a client, and returns their number. The client may connect again."""
        return self._call(self._disconnect(client_id))

    def fail(
        self, api: str, error: ErrorCode | int | str, *, times: int | None = 1, client_id: str | None = None
    ) -> Fault:
        """Answers the next requests of an API with an error and does nothing else for them.

        `api` is Kafka's name, such as Produce. `error` is an `ErrorCode` or its name. With `times=None`, all
        requests fail until `Fault.end`. With `client_id`, only those of one client fail.
        """
        return self._faults.add(Fault(api, times, client_id, code=error_code(error)))

    def delay(
        self, api: str, seconds: float, *, times: int | None = 1, client_id: str | None = None
    ) -> Fault:
        """Holds the next requests of an API back for that time, and with each the later requests of its
        connection.
        """
        return self._faults.add(Fault(api, times, client_id, delay_s=seconds))

    def lose_response(self, api: str, *, times: int | None = 1, client_id: str | None = None) -> Fault:
        """Carries the next requests of an API out, and closes the connection in place of a response."""
        return self._faults.add(Fault(api, times, client_id, is_response_lost=True))

    def heal(self) -> None:
        """Ends all faults and pauses. Brokers that were killed stay down."""
        self._call(self._on_loop(self._faults.heal))
        self._update_brokers()

    def rebalance(self, group: str) -> Rebalance:
        """Makes another member join a group of consumers and leave it again, so that the partitions move
        twice. It returns when the group knows the member; the members take part as they poll.
        """
        return Rebalance(self._call(self._rebalance(group)))

    def expire(self, topic: str, partitions: Iterable[int] | None = None) -> None:
        """Removes all records of a topic, or of some of its partitions, as retention does. The next record
        gets the next offset.
        """
        self._call(self._requests.delete_records(topic, partitions))

    def advance(self, seconds: float) -> None:
        """Moves the cluster's clock forward: sessions, transactions and delays time out, and retention finds
        records older. All timers that become due run at once. The clocks of clients do not move, and the
        connections that are idle stay open.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back by {-seconds} s")
        self._call(self._advance(int(seconds * 1000)))

    # -- on the event loop

    async def _start(self) -> None:
        self._cluster = await EmbeddedCluster.start(
            self._settings, self._directory, clock=self._clock, intercept=self._faults.intercept
        )
        self._update_brokers()

    async def _stop(self) -> None:
        cluster, self._cluster = self._cluster, None
        self._requests.brokers = ()
        self._faults.heal()
        self._rebalances.cancel()
        if self._rebalances:
            await asyncio.wait(self._rebalances)
        try:
            if cluster is not None:
                await cluster.stop()
        finally:
            await self._wait_for_workers()

    async def _wait_for_workers(self) -> None:
        """Waits for what stopped brokers still do in threads. A stop ends the tasks of a broker, but the
        thread of such a task may be removing files of a deleted topic.
        """
        stopped, self._workers = self._workers, _new_workers()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(self._workers)
        await loop.run_in_executor(None, stopped.shutdown)

    async def _reset(self) -> None:
        await self._stop()
        self._clock.offset_ms = 0
        await asyncio.to_thread(_empty, self._directory)
        await self._start()

    async def _clean(self) -> None:
        self._faults.heal()
        self._update_brokers()
        if self._clock.offset_ms or len(self._requests.brokers) < len(self._broker_ids):
            return await self._reset()
        try:
            if await self._requests.has_broker_settings():
                return await self._reset()
            topics = await self._requests.topics()
            internal = {topic.name for topic in topics if topic.is_internal}
            if "__transaction_state" in internal and await self._requests.has_transactions():
                return await self._reset()
            names = [topic.name for topic in topics if topic.name is not None and not topic.is_internal]
            if names:
                await self._requests.delete_topics(names)
            if internal and not await self._requests.delete_all_groups():
                return await self._reset()
            await self._requests.delete_users()
            await self._requests.delete_acls()
            await self._requests.delete_quotas()
        except RequestFailedError:
            await self._reset()

    async def _kill(self, broker_id: int) -> None:
        self._require_running(broker_id)
        assert self._cluster is not None
        self._faults.forget(broker_id)
        await self._cluster.kill_broker(broker_id)
        self._update_brokers()

    async def _start_again(self, broker_id: int) -> None:
        self._require_known(broker_id)
        if broker_id in self.brokers:
            raise ValueError(f"broker {broker_id} runs already; kill_broker({broker_id}) ends it")
        assert self._cluster is not None
        await self._cluster.start_broker(broker_id)
        self._update_brokers()

    async def _until_fetched(self, topic: str, timeout_s: float) -> tuple[int, ...]:
        """Returns the partitions with records that nobody has fetched in time."""
        found = await self._requests.topic(topic)
        ends = await self._requests.ends(found)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watch = FetchWatch(topic, found.topic_id, ends, done)
        self._faults.watch_fetches(watch)
        try:
            await asyncio.wait_for(done, timeout_s)
        except TimeoutError:
            return watch.left
        return ()

    async def _disconnect(self, client_id: str) -> int:
        return self._faults.disconnect(client_id)

    async def _rebalance(self, group: str) -> Future[None]:
        task = await begin_rebalance(self._requests, group)
        done: Future[None] = Future()

        def ended(task: asyncio.Task[None]) -> None:
            error = RuntimeError("the cluster was closed") if task.cancelled() else task.exception()
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self._rebalances.keep(task).add_done_callback(ended)
        return done

    async def _advance(self, elapsed_ms: int) -> None:
        self._clock.offset_ms += elapsed_ms
        # Timers that are due run in the next iteration, and what they add in the iteration after it.
        for _ in range(2):
            await asyncio.sleep(0)

    async def _on_loop(self, call: Any, *arguments: Any) -> None:  # Any: one of the methods of Faults
        call(*arguments)

    def _call(self, work: Coroutine[Any, Any, T], wait_s: float = 0.0) -> T:
        """Returns the result of a call on the event loop, which may wait for `wait_s` on purpose."""
        loop = self._loop
        if loop is None:
            work.close()
            raise RuntimeError(_NOT_RUNNING)
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("methods of Cluster cannot be called on its own event loop")
        result = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return result.result(_CALL_TIMEOUT_S + wait_s)
        except BaseException:
            result.cancel()  # nobody waits any more, for example after Ctrl-C
            raise

    def _require_known(self, broker_id: int) -> None:
        if not self._ports:
            raise RuntimeError(_NOT_RUNNING)
        if broker_id not in self._broker_ids:
            known = ", ".join(map(str, self._broker_ids))
            raise ValueError(f"the cluster has no broker {broker_id!r}; its brokers are {known}")

    def _require_running(self, broker_id: int) -> None:
        self._require_known(broker_id)
        if broker_id not in self.brokers:
            raise ValueError(f"broker {broker_id} was killed; start_broker({broker_id}) starts it again")

    def _update_brokers(self) -> None:
        self._faults.brokers = tuple(
            MetadataResponseBroker(broker_id, HOST, self._port(broker_id)) for broker_id in self.brokers
        )
        self._requests.brokers = tuple(
            Broker(broker_id, self._port(broker_id, is_internal=True))
            for broker_id in self.brokers
            if broker_id not in self._faults.paused
        )

    # -- settings

    def _port(self, broker_id: int, *, is_internal: bool = False) -> int:
        port: int = self._ports[2 * (broker_id - 1) + is_internal].getsockname()[1]
        return port

    def _settings_of(self, broker_id: int) -> BrokerSettings:
        count = len(self._broker_ids)
        replicas = min(_MAX_REPLICAS, count)
        given = {
            "node.id": str(broker_id),
            "log.dirs": str(self._directory / f"broker-{broker_id}"),
            "listeners": f"PLAINTEXT://{HOST}:{self._port(broker_id)},"
            f"{INTERNAL_LISTENER}://{HOST}:{self._port(broker_id, is_internal=True)}",
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{INTERNAL_LISTENER}:PLAINTEXT",
            "inter.broker.listener.name": INTERNAL_LISTENER,
            "default.replication.factor": str(replicas),
            "min.insync.replicas": str(max(1, replicas - 1)),
            # Tests neither wait for members that may join nor for long heartbeats.
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "100",
            "group.consumer.min.heartbeat.interval.ms": "100",
            "group.consumer.heartbeat.interval.ms": "100",
            "group.consumer.min.session.timeout.ms": "500",
            "group.consumer.assignment.interval.ms": "0",
            "group.share.assignment.interval.ms": "0",
            "group.share.min.heartbeat.interval.ms": "100",
            "group.share.heartbeat.interval.ms": "100",
            "group.share.min.session.timeout.ms": "500",
        }
        for topic in _INTERNAL_TOPICS:
            given[f"{topic}.num.partitions"] = str(count)
            given[f"{topic}.replication.factor"] = str(replicas)
        for topic in _INTERNAL_TOPICS[1:]:
            given[f"{topic}.min.isr"] = str(max(1, replicas - 1))
        return BrokerSettings.parse({**given, **self._given})


def _reserved_port() -> socket.socket:
    """Returns a socket that keeps a port for brokers. It does not listen, so a broker can bind the port too,
    but no other program gets it while a broker is down.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((HOST, 0))
    return reserved


def _texts(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns a copy of settings. Raises TypeError for what callers without a type checker pass."""
    for name, value in settings.items():
        if not isinstance(value, str):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            raise TypeError(f"{name} is {value!r}, but settings are texts; write {text!r}")
    return dict(settings)


def _new_workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="tidelog-testing-worker")


def _remove(directory: Path, ports: list[socket.socket]) -> None:
    for reserved in ports:
        reserved.close()
    ports.clear()
    shutil.rmtree(directory, ignore_errors=True)


def _remove_left_open(directory: Path, ports: list[socket.socket]) -> None:
    _remove(directory, ports)
    warnings.warn(
        "a cluster of tidelog.testing was not closed; use it with `with`, or call close()",
        ResourceWarning,
        stacklevel=1,
    )


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        shutil.rmtree(path)
