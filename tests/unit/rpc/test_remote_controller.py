"""The controller's API over real gRPC connections: the store names the controller, and only safe calls are
repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tidelog.metadata.entries import CONTROLLER_KEY, ControllerEntry
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.metadata.store import Delete, Put
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc import grpc_controller
from tidelog.rpc.controller_api import ControllerApi, ForwardedRequest, ProducerIdBlock
from tidelog.rpc.grpc_controller import ControllerApiService, RemoteController
from tidelog.rpc.grpc_transport import RpcServer
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

Hook = Callable[[], Awaitable[None]]


class FakeController:
    """Counts its calls. `before` runs first in each call and may raise."""

    def __init__(self, before: Hook | None = None) -> None:
        self.before = before
        self.asked: list[Any] = []

    async def handle(self, api_key: int, request: ForwardedRequest) -> Any:
        self.asked.append((api_key, request))
        await self._before()
        if api_key == ApiKey.CREATE_TOPICS:
            return CreateTopicsResponse(
                topics=[CreatableTopicResult(name=topic.name) for topic in request.message.topics]
            )
        return DescribeClientQuotasResponse(error_message="none there")

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        self.asked.append((broker_id, broker_epoch))
        await self._before()
        return ProducerIdBlock(2**40, 77)

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> tuple[TopicPartition, ...]:
        self.asked.append((broker_id, broker_epoch))
        await self._before()
        return (TopicPartition("alone", 4),)

    async def _before(self) -> None:
        if self.before is not None:
            await self.before()


class Lab:
    """A store, a remote controller that follows it, and the servers of controllers."""

    def __init__(self, store: FileMetadataStore) -> None:
        self.store = store
        self.remote = RemoteController(store)
        self._servers: list[RpcServer] = []

    async def serve(self, controller: ControllerApi, listen: str = "127.0.0.1:0") -> tuple[RpcServer, str]:
        server = RpcServer(ControllerApiService(controller))
        self._servers.append(server)
        return server, await server.start(listen)

    async def elect(self, controller_id: int, address: str) -> None:
        entry = ControllerEntry(controller_id, address)
        await self.store.txn([], [Delete(CONTROLLER_KEY)])
        await self.store.txn([], [Put(entry.key, entry.encode())])

    async def vacate(self) -> None:
        await self.store.txn([], [Delete(CONTROLLER_KEY)])

    async def stop(self) -> None:
        await self.remote.stop()
        for server in self._servers:
            await server.stop()


@asynccontextmanager
async def started_lab(path: Path) -> AsyncIterator[Lab]:
    store = FileMetadataStore.open(path, monotonic_ms=lambda: 0)
    made = Lab(store)
    made.remote.start()
    try:
        yield made
    finally:
        await made.stop()
        await store.close()


def run(scenario: Awaitable[None]) -> None:
    async def within_a_minute() -> None:
        await asyncio.wait_for(scenario, 60)

    asyncio.run(within_a_minute())


def creation(**fields: Any) -> ForwardedRequest:
    topic = CreatableTopic(name="t", num_partitions=3, replication_factor=2)
    return ForwardedRequest(
        7, CreateTopicsRequest(topics=[topic], **fields), "User:ann", client_id=None, host="10.0.0.7"
    )


def quotas() -> ForwardedRequest:
    return ForwardedRequest(1, DescribeClientQuotasRequest(components=[]), client_id="", host="")


async def refuse(code: ErrorCode, message: str | None = None) -> None:
    raise KafkaError(code, message)


def test_requests_and_answers_pass_unchanged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_lab(tmp_path) as lab:
            controller = FakeController()
            _, address = await lab.serve(controller)
            await lab.elect(1, address)
            answer = await lab.remote.handle(ApiKey.CREATE_TOPICS, creation())
            assert answer == CreateTopicsResponse(topics=[CreatableTopicResult(name="t")])
            await lab.remote.handle(ApiKey.DESCRIBE_CLIENT_QUOTAS, quotas())
            assert await lab.remote.allocate_producer_ids(3, 2**50) == ProducerIdBlock(2**40, 77)
            remaining = await lab.remote.controlled_shutdown(3, 2**50)
            assert remaining == (TopicPartition("alone", 4),)
            assert controller.asked == [
                (ApiKey.CREATE_TOPICS, creation()),
                (ApiKey.DESCRIBE_CLIENT_QUOTAS, quotas()),
                (3, 2**50),
                (3, 2**50),
            ]

    run(scenario())


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (KafkaError(ErrorCode.STALE_BROKER_EPOCH, "born again"), "STALE_BROKER_EPOCH", "born again"),
        (KafkaError(ErrorCode.REQUEST_TIMED_OUT), "REQUEST_TIMED_OUT", None),
        (RuntimeError("a bug"), "UNKNOWN_SERVER_ERROR", "RuntimeError('a bug')"),
    ],
)
def test_refusals_keep_code_and_message(
    tmp_path: Path, raised: Exception, code: str, message: str | None
) -> None:
    async def fails() -> None:
        raise raised

    async def scenario() -> None:
        async with started_lab(tmp_path) as lab:
            _, address = await lab.serve(FakeController(fails))
            await lab.elect(1, address)
            for call in (
                lab.remote.handle(ApiKey.CREATE_TOPICS, creation()),
                lab.remote.allocate_producer_ids(1, 1),
                lab.remote.controlled_shutdown(1, 1),
            ):
                with pytest.raises(KafkaError) as caught:
                    await call
                assert (caught.value.code.name, caught.value.message) == (code, message)

    run(scenario())


def test_an_unknown_version_of_an_api_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_lab(tmp_path) as lab:
            with pytest.raises(KafkaError) as caught:
                await lab.remote.handle(
                    ApiKey.CREATE_TOPICS, ForwardedRequest(99, CreateTopicsRequest(topics=[]))
                )
            assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION

    run(scenario())


def test_a_call_waits_for_a_controller(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_lab(tmp_path) as lab:
            asked = asyncio.create_task(lab.remote.handle(ApiKey.CREATE_TOPICS, creation()))
            await asyncio.sleep(0.1)
            _, address = await lab.serve(FakeController())
            await lab.elect(1, address)
            assert await asked

    run(scenario())


def test_without_a_controller_the_call_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_controller, "MIN_TIMEOUT_MS", 50)
    monkeypatch.setattr(grpc_controller, "ANSWER_SLACK_MS", 50)

    async def scenario() -> None:
        async with started_lab(tmp_path) as lab:
            with pytest.raises(KafkaError) as caught:
                await lab.remote.handle(ApiKey.CREATE_TOPICS, creation(timeout_ms=10))
            assert caught.value.code is ErrorCode.NOT_CONTROLLER
            # An active controller at an address where nothing listens is like no controller.
            server, address = await lab.serve(FakeController())
            await server.stop()
            await lab.elect(1, address)
            with pytest.raises(KafkaError) as caught:
                await lab.remote.handle(ApiKey.CREATE_TOPICS, creation(timeout_ms=10))
            assert caught.value.code is ErrorCode.NOT_CONTROLLER

    run(scenario())


@pytest.mark.timeout(20)
def test_a_broker_that_stops_does_not_wait_long_for_a_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_controller, "SHUTDOWN_SEARCH_MS", 100)

    async def scenario() -> None:
        async with started_lab(tmp_path) as lab:
            with pytest.raises(KafkaError) as caught:
                await lab.remote.controlled_shutdown(1, 1)
            assert caught.value.code is ErrorCode.NOT_CONTROLLER
            # A controller whose address does not answer is active until its lease expires.
            server, address = await lab.serve(FakeController())
            await server.stop()
            await lab.elect(1, address)
            with pytest.raises(KafkaError) as caught:
                await lab.remote.controlled_shutdown(1, 1)
            assert caught.value.code is ErrorCode.NOT_CONTROLLER
            # A controller that answers may take its time.
            slow = FakeController(lambda: asyncio.sleep(0.3))
            _, address = await lab.serve(slow)
            await lab.elect(2, address)
            assert await lab.remote.controlled_shutdown(1, 1) == (TopicPartition("alone", 4),)

    run(scenario())


def test_a_deposed_controller_is_not_called_once_another_is_active(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_lab(tmp_path) as lab:
            deposed = FakeController(lambda: refuse(ErrorCode.NOT_CONTROLLER))
            successor = FakeController()
            _, address = await lab.serve(deposed)
            await lab.elect(1, address)
            asked = asyncio.create_task(lab.remote.handle(ApiKey.CREATE_TOPICS, creation()))
            while not deposed.asked:  # noqa: ASYNC110 - what is waited for is another object's attribute
                await asyncio.sleep(0.01)
            _, address = await lab.serve(successor)
            await lab.elect(2, address)
            assert await asked
            times = len(deposed.asked)
            await lab.remote.allocate_producer_ids(1, 1)
            assert (len(deposed.asked), len(successor.asked)) == (times, 2)

    run(scenario())


def test_a_change_is_not_repeated_if_its_controller_fails(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_lab(tmp_path) as lab:
            begun = asyncio.Event()

            async def for_ever() -> None:
                begun.set()
                await asyncio.Event().wait()

            dying, successor = FakeController(for_ever), FakeController()
            server, address = await lab.serve(dying)
            await lab.elect(1, address)
            asked = asyncio.create_task(lab.remote.handle(ApiKey.CREATE_TOPICS, creation()))
            await begun.wait()
            await server.stop()
            with pytest.raises(KafkaError) as caught:
                await asked
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
            assert "unknown" in str(caught.value)
            # The next call finds the next controller.
            next_call = asyncio.create_task(lab.remote.handle(ApiKey.CREATE_TOPICS, creation()))
            await asyncio.sleep(0.2)
            _, address = await lab.serve(successor)
            await lab.elect(2, address)
            await next_call
            assert len(successor.asked) == 1

    run(scenario())


@pytest.mark.parametrize("kind", ["read", "validate", "producer_ids", "shutdown"])
def test_repeatable_calls_are_repeated_with_the_next_controller(tmp_path: Path, kind: str) -> None:
    async def scenario() -> None:
        async with started_lab(tmp_path) as lab:
            begun = asyncio.Event()

            async def for_ever() -> None:
                begun.set()
                await asyncio.Event().wait()

            dying, successor = FakeController(for_ever), FakeController()
            server, address = await lab.serve(dying)
            await lab.elect(1, address)
            remote = lab.remote
            calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
                "read": lambda: remote.handle(ApiKey.DESCRIBE_CLIENT_QUOTAS, quotas()),
                "validate": lambda: remote.handle(ApiKey.CREATE_TOPICS, creation(validate_only=True)),
                "producer_ids": lambda: remote.allocate_producer_ids(1, 1),
                "shutdown": lambda: remote.controlled_shutdown(1, 1),
            }
            asked = asyncio.create_task(calls[kind]())
            await begun.wait()
            await server.stop()
            await asyncio.sleep(0.1)
            assert not asked.done()
            _, address = await lab.serve(successor)
            await lab.elect(2, address)
            assert await asked
            assert (len(dying.asked), len(successor.asked)) == (1, 1)

    run(scenario())


def test_a_frozen_controller_delays_no_call_once_another_is_active(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_lab(tmp_path) as lab:
            begun = asyncio.Event()

            async def for_ever() -> None:
                begun.set()
                await asyncio.Event().wait()

            _, address = await lab.serve(FakeController(for_ever))
            await lab.elect(1, address)
            change = asyncio.create_task(lab.remote.handle(ApiKey.CREATE_TOPICS, creation()))
            read = asyncio.create_task(lab.remote.handle(ApiKey.DESCRIBE_CLIENT_QUOTAS, quotas()))
            await begun.wait()
            _, address = await lab.serve(FakeController())
            await lab.elect(2, address)
            loop = asyncio.get_running_loop()
            started = loop.time()
            with pytest.raises(KafkaError) as caught:
                await change
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
            assert isinstance(await read, DescribeClientQuotasResponse)
            assert loop.time() - started < 5

    run(scenario())


def test_many_calls_succeed_while_controllers_change(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_lab(tmp_path) as lab:
            controllers = [FakeController() for _ in range(4)]
            asked = [asyncio.create_task(lab.remote.allocate_producer_ids(n, 1)) for n in range(40)]
            previous: RpcServer | None = None
            for number, controller in enumerate(controllers):
                server, address = await lab.serve(controller)
                await lab.elect(number, address)
                asked += [asyncio.create_task(lab.remote.allocate_producer_ids(n, 1)) for n in range(40)]
                await asyncio.sleep(0.02)
                if previous is not None:
                    await previous.stop()
                previous = server
            assert await asyncio.gather(*asked) == [ProducerIdBlock(2**40, 77)] * 200

    run(scenario())


def test_calls_wait_while_no_controller_is_active(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_lab(tmp_path) as lab:
            controller = FakeController()
            _, address = await lab.serve(controller)
            await lab.elect(1, address)
            await lab.remote.allocate_producer_ids(1, 1)
            await lab.vacate()
            await asyncio.sleep(0.05)
            asked = asyncio.create_task(lab.remote.allocate_producer_ids(2, 1))
            await asyncio.sleep(0.05)
            assert not asked.done()
            await lab.elect(1, address)
            await asked

    run(scenario())


def test_after_a_stop_calls_fail_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with started_lab(tmp_path) as lab:
            _, address = await lab.serve(FakeController())
            await lab.elect(1, address)
            await lab.remote.allocate_producer_ids(1, 1)
            await lab.remote.stop()
            with pytest.raises(KafkaError) as caught:
                await lab.remote.allocate_producer_ids(1, 1)
            assert caught.value.code is ErrorCode.NOT_CONTROLLER

    run(scenario())
