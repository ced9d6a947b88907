"""The ways in which a program leaves a producer with 1,000 accepted records, each in a process of its own.

`python -m brokerlab.ways_out` prints a table: how many records arrive, and what is said about the others.
`python -m brokerlab.ways_out NAME BOOTSTRAP TOPIC` is one of the programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import tidelog.client as threads
from tidelog.aio import Producer
from tidelog.client.core.connection_settings import Properties
from tidelog.client.exceptions import ClosedError, KafkaError, RecordTooLargeError
from tidelog.testing import Cluster

COUNT: Final = 1_000
PATIENT: Final[Properties] = {"linger.ms": 60_000, "batch.size": 1_000_000}
"""Nothing leaves the buffer by itself while a program runs."""
WAY_LIMIT_S: Final = 60.0
HANGS: Final = "log: the program hangs"


async def fill(producer: Producer[bytes, bytes], topic: str) -> None:
    for number in range(COUNT):
        await producer.send(topic, b"%d" % number)


def fill_in_thread(producer: threads.Producer[bytes, bytes], topic: str) -> None:
    for number in range(COUNT):
        producer.send(topic, b"%d" % number)


# -- on asyncio


async def work(
    bootstrap: str, topic: str, when_filled: Callable[[], object], settings: Properties = PATIENT
) -> None:
    async with Producer[bytes, bytes](bootstrap, settings) as producer:
        await fill(producer, topic)
        asyncio.get_running_loop().call_soon(when_filled)
        await asyncio.sleep(10 * WAY_LIMIT_S)


async def cancelled(bootstrap: str, topic: str, settings: Properties = PATIENT) -> None:
    filled = asyncio.Event()
    task = asyncio.create_task(work(bootstrap, topic, filled.set, settings))
    await filled.wait()
    task.cancel()
    await asyncio.wait([task])


async def cancelled_by_sibling(bootstrap: str, topic: str) -> None:
    filled = asyncio.Event()

    async def fail() -> None:
        await filled.wait()
        raise ValueError("the sibling failed")

    async with asyncio.TaskGroup() as group:
        group.create_task(work(bootstrap, topic, filled.set))
        group.create_task(fail())


async def cancelled_twice(bootstrap: str, topic: str) -> None:
    filled = asyncio.Event()
    task = asyncio.create_task(work(bootstrap, topic, filled.set))
    await filled.wait()
    task.cancel()
    await asyncio.sleep(0)  # the flush begins
    task.cancel()
    await asyncio.wait([task])


async def cancelled_without_answers(bootstrap: str, topic: str) -> None:
    await cancelled(bootstrap, topic, {**PATIENT, "cancelled.flush.timeout.ms": 500})


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


async def interrupted(bootstrap: str, topic: str) -> None:
    await work(bootstrap, topic, interrupt)


async def failed(bootstrap: str, topic: str) -> None:
    async with Producer[bytes, bytes](bootstrap, PATIENT) as producer:
        await fill(producer, topic)
        raise ValueError("the body failed")


async def open_at_the_end(bootstrap: str, topic: str) -> None:
    producer = Producer[bytes, bytes](bootstrap, PATIENT)
    await producer.start()
    await fill(producer, topic)


async def transaction_cancelled(bootstrap: str, topic: str) -> None:
    filled = asyncio.Event()

    async def transact() -> None:
        producer = Producer[bytes, bytes](bootstrap, {"transactional.id": topic})
        async with producer, producer.transaction():
            await fill(producer, topic)
            await producer.flush()
            filled.set()
            await asyncio.sleep(10 * WAY_LIMIT_S)

    task = asyncio.create_task(transact())
    await filled.wait()
    task.cancel()
    await asyncio.wait([task])


def loop_closed(bootstrap: str, topic: str) -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(open_at_the_end(bootstrap, topic))
    loop.close()


def interrupted_without_runner(bootstrap: str, topic: str) -> None:
    """KeyboardInterrupt leaves `run_until_complete`, and nothing runs the coroutine again."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(work(bootstrap, topic, interrupt))


async def collected(bootstrap: str, topic: str) -> None:
    await open_at_the_end(bootstrap, topic)
    await asyncio.sleep(0.1)


async def forked(bootstrap: str, topic: str) -> None:
    async with Producer[bytes, bytes](bootstrap, PATIENT) as producer:
        await fill(producer, topic)
        delivery = await producer.send(topic, b"1001st")
        pid = os.fork()
        if not pid:
            in_child(
                lambda: asyncio.run(producer.flush()),
                lambda: asyncio.run(_send(producer, topic)),
                delivery.result,
            )
            os._exit(0)  # as multiprocessing does; the event loop of the parent must not go on in the child
        await asyncio.to_thread(os.waitpid, pid, 0)


async def _send(producer: Producer[bytes, bytes], topic: str) -> None:
    await producer.send(topic, b"of the child")


def in_pool(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns what another process returns, or raises its exception."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply_async(function, arguments).get(timeout=WAY_LIMIT_S / 2)


def refuse() -> None:
    raise RecordTooLargeError("the record is too large", "max.request.size")


def in_another_process(producer: Any, delivery: Any) -> None:
    """Prints what becomes of a producer, a delivery and an exception between two processes."""
    for call in (lambda: in_pool(id, producer), lambda: in_pool(id, delivery), lambda: in_pool(refuse)):
        try:
            call()
        except (TypeError, RecordTooLargeError) as error:
            print(f"pickle: {type(error).__name__}: {error}", file=sys.stderr)


async def pickled(bootstrap: str, topic: str) -> None:
    async with Producer[bytes, bytes](bootstrap, PATIENT) as producer:
        await fill(producer, topic)
        delivery = await producer.send(topic, b"1001st")
        await asyncio.to_thread(in_another_process, producer, delivery)


# -- in threads


def pickled_thread(bootstrap: str, topic: str) -> None:
    with threads.Producer[bytes, bytes](bootstrap, PATIENT) as producer:
        fill_in_thread(producer, topic)
        in_another_process(producer, producer.send(topic, b"1001st"))


def interrupted_thread(bootstrap: str, topic: str) -> None:
    with threads.Producer[bytes, bytes](bootstrap, PATIENT) as producer:
        fill_in_thread(producer, topic)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10 * WAY_LIMIT_S)


def interrupted_thread_twice(bootstrap: str, topic: str) -> None:
    settings = {**PATIENT, "cancelled.flush.timeout.ms": 20_000}
    with threads.Producer[bytes, bytes](bootstrap, settings) as producer:
        fill_in_thread(producer, topic)
        subprocess.Popen(["sh", "-c", f"sleep 1; kill -INT {os.getpid()}"])
        raise KeyboardInterrupt


def failed_thread(bootstrap: str, topic: str) -> None:
    with threads.Producer[bytes, bytes](bootstrap, PATIENT) as producer:
        fill_in_thread(producer, topic)
        raise ValueError("the body failed")


def open_thread(bootstrap: str, topic: str, settings: Properties = PATIENT) -> threads.Producer[bytes, bytes]:
    producer = threads.Producer[bytes, bytes](bootstrap, settings)
    producer.start()
    fill_in_thread(producer, topic)
    return producer


_kept: Final[list[Any]] = []


def open_thread_at_exit(bootstrap: str, topic: str) -> None:
    _kept.append(open_thread(bootstrap, topic))


def open_thread_at_exit_without_answers(bootstrap: str, topic: str) -> None:
    _kept.append(open_thread(bootstrap, topic, {**PATIENT, "cancelled.flush.timeout.ms": 500}))


def collected_thread(bootstrap: str, topic: str) -> None:
    producer = open_thread(bootstrap, topic)
    del producer


def thread_transaction_open_at_exit(bootstrap: str, topic: str) -> None:
    producer = threads.Producer[bytes, bytes](bootstrap, {"transactional.id": topic})
    producer.start()
    _kept.append((producer, transaction := producer.transaction()))
    transaction.__enter__()
    fill_in_thread(producer, topic)


def forked_thread(bootstrap: str, topic: str) -> None:
    with threads.Producer[bytes, bytes](bootstrap, PATIENT) as producer:
        fill_in_thread(producer, topic)
        delivery = producer.send(topic, b"1001st")
        pid = os.fork()
        if not pid:
            in_child(
                producer.flush,
                lambda: producer.send(topic, b"of the child"),
                lambda: producer.send_batch(topic, [b"of the child"]),
                delivery.result,
            )
            sys.exit(0)  # with the hooks at exit
        os.waitpid(pid, 0)


def in_child(*calls: Callable[[], Any]) -> None:
    """Prints the error of each call."""
    for call in calls:
        try:
            call()
        except (ClosedError, KafkaError) as error:
            print(f"child: {type(error).__name__}: {error}", file=sys.stderr)
        else:
            print("child: no error", file=sys.stderr)


ON_ASYNCIO: Final = (
    cancelled,
    cancelled_by_sibling,
    cancelled_twice,
    cancelled_without_answers,
    interrupted,
    failed,
    open_at_the_end,
    collected,
    transaction_cancelled,
    forked,
    pickled,
)
OTHERS: Final = (
    loop_closed,
    interrupted_without_runner,
    interrupted_thread,
    interrupted_thread_twice,
    failed_thread,
    open_thread_at_exit,
    open_thread_at_exit_without_answers,
    collected_thread,
    thread_transaction_open_at_exit,
    forked_thread,
    pickled_thread,
)
WITHOUT_ANSWERS: Final = frozenset(
    {"cancelled_without_answers", "interrupted_thread_twice", "open_thread_at_exit_without_answers"}
)
"""The ways during which the broker answers no Produce."""


class Outcome(NamedTuple):
    stored: int
    seconds: float
    said: str
    """The text that the program wrote to standard error."""


def take(name: str, cluster: Cluster) -> Outcome:
    """Runs a program and returns what became of its records."""
    topic = name.replace("_", "-")
    cluster.create_topic(topic)
    with contextlib.ExitStack() as stack:
        if name in WITHOUT_ANSWERS:
            stack.enter_context(cluster.fail("Produce", "NOT_ENOUGH_REPLICAS", times=None))
        began_s = time.monotonic()
        program = subprocess.Popen(
            [sys.executable, "-W", "default", "-m", "brokerlab.ways_out", name, cluster.bootstrap, topic],
            cwd=Path(__file__).parents[1],  # where the package brokerlab is
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            _, said = program.communicate(timeout=WAY_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)  # with its child
            said = program.communicate()[1] + "\n" + HANGS
        seconds = time.monotonic() - began_s
    return Outcome(len(cluster.records(topic)), seconds, said)


def main() -> None:
    if len(sys.argv) > 1:
        name, bootstrap, topic = sys.argv[1:]
        logging.basicConfig(format="log: %(message)s")
        way = globals()[name]
        if way in ON_ASYNCIO:
            asyncio.run(way(bootstrap, topic))
        else:
            way(bootstrap, topic)
        return
    with Cluster() as cluster:
        print("| way | of 1,000 arrive | seconds | said |\n|---|---|---|---|")
        for way in (*ON_ASYNCIO, *OTHERS):
            outcome = take(way.__name__, cluster)
            said = [
                line
                for line in outcome.said.splitlines()
                if line.startswith(("log: ", "child: ", "pickle: "))
                or "ResourceWarning: the producer" in line
            ]
            print(
                f"| {way.__name__} | {outcome.stored} | {outcome.seconds:.1f} | {'<br>'.join(said)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
