"""The controller's commands over real gRPC connections, to brokers that record them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tidelog.kernel.steps import Steps, all_at_once
from tidelog.model.brokers import BrokerRegistration
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc import grpc_broker_commands
from tidelog.rpc.broker_commands import (
    BrokerCommands,
    CommandResult,
    DeletedTopic,
    LeaderAndIsr,
    PartitionState,
    StopReplica,
    TopicState,
    UpdateMetadata,
)
from tidelog.rpc.command_messages import BrokerCommand, command_message
from tidelog.rpc.generated import broker_commands_pb2 as pb
from tidelog.rpc.generated.broker_commands_pb2_grpc import BrokerCommandsStub
from tidelog.rpc.grpc_broker_commands import BrokerCommandsService, GrpcBrokerChannels
from tidelog.rpc.grpc_transport import RpcServer, open_channel
from tidelog.rpc.peer_tls import ServiceRole

EPOCH = 100


class RecordingBroker:
    """Records commands. `before` runs first in each command, and `result` is its result."""

    def __init__(self) -> None:
        self.commands: list[Any] = []
        self.result = CommandResult()
        self.before: Callable[[], Awaitable[None]] | None = None

    async def leader_and_isr(self, command: LeaderAndIsr) -> CommandResult:
        return await self._take(command)

    async def update_metadata(self, command: UpdateMetadata) -> CommandResult:
        return await self._take(command)

    async def stop_replica(self, command: StopReplica) -> CommandResult:
        return await self._take(command)

    async def _take(self, command: object) -> CommandResult:
        if self.before is not None:
            await self.before()
        self.commands.append(command)
        return self.result


class CommandServer:
    """A broker's gRPC server, which can be stopped and started at the same address."""

    def __init__(self, broker: BrokerCommands, broker_id: int = 1) -> None:
        self._broker = broker
        self._broker_id = broker_id
        self.address = "127.0.0.1:0"

    async def open(self, broker_epoch: int | None = EPOCH) -> None:
        self.service = BrokerCommandsService(self._broker, self._broker_id)
        if broker_epoch is not None:
            self.service.set_broker_epoch(broker_epoch)
        self._server = RpcServer(self.service)
        self.address = await self._server.start(self.address)

    async def close(self) -> None:
        await self._server.stop()

    def registration(self, broker_epoch: int = EPOCH) -> BrokerRegistration:
        return BrokerRegistration(self._broker_id, broker_epoch, (), rpc_address=self.address)


@asynccontextmanager
async def opened(
    broker: BrokerCommands, broker_epoch: int | None = EPOCH
) -> AsyncIterator[tuple[CommandServer, GrpcBrokerChannels]]:
    server, channels = CommandServer(broker), GrpcBrokerChannels()
    await server.open(broker_epoch)
    try:
        yield server, channels
    finally:
        await channels.close()
        await server.close()


def update(number: int, controller_epoch: int = 1) -> UpdateMetadata:
    return UpdateMetadata(number, controller_epoch, ())


def run(scenario: Awaitable[None]) -> None:
    async def within_a_minute() -> None:
        await asyncio.wait_for(scenario, 60)

    asyncio.run(within_a_minute())


async def sent_until_it_arrives(
    channels: GrpcBrokerChannels, server: CommandServer, command: UpdateMetadata
) -> None:
    """Repeats a command while the broker is unreachable, like the controller."""
    while True:
        try:
            await channels.channel(server.registration()).update_metadata(command)
            return
        except ConnectionError:
            await asyncio.sleep(0.01)


def test_commands_arrive_in_order_and_are_answered() -> None:
    async def scenario() -> None:
        broker = RecordingBroker()
        refused = {TopicPartition("t", 3): ErrorCode.KAFKA_STORAGE_ERROR}
        broker.result = CommandResult(ErrorCode.NONE, refused)
        async with opened(broker) as (server, channels):
            channel = channels.channel(server.registration())
            sent = [
                LeaderAndIsr(1, 1, (), {"t": {"retention.ms": "1"}}, is_full=True),
                *(update(number) for number in range(50)),
                StopReplica(1, 1, (TopicPartition("t", 0),), {"t": uuid.UUID(int=5)}, delete=True),
            ]
            calls = [channel.leader_and_isr, *[channel.update_metadata] * 50, channel.stop_replica]
            answers = await asyncio.gather(*(call(c) for call, c in zip(calls, sent, strict=True)))  # type: ignore[operator]
            assert broker.commands == sent
            assert answers == [broker.result] * 52

    run(scenario())


def test_a_channel_serves_one_registration() -> None:
    async def scenario() -> None:
        async with opened(RecordingBroker()) as (server, channels):
            assert channels.channel(server.registration()) is channels.channel(server.registration())
            assert channels.channel(server.registration()) is not channels.channel(
                server.registration(EPOCH + 1)
            )

    run(scenario())


def test_a_broker_without_an_address_is_unreachable() -> None:
    with pytest.raises(ConnectionError, match="no gRPC address"):
        GrpcBrokerChannels().channel(BrokerRegistration(1, EPOCH, ()))


def test_a_command_reaches_a_server_that_has_returned() -> None:
    async def scenario() -> None:
        broker = RecordingBroker()
        async with opened(broker) as (server, channels):
            await channels.channel(server.registration()).update_metadata(update(1))
            await server.close()
            with pytest.raises(ConnectionError):
                await channels.channel(server.registration()).update_metadata(update(2))
            await server.open()
            await sent_until_it_arrives(channels, server, update(2))
            assert broker.commands == [update(1), update(2)]

    run(scenario())


def test_a_stop_waits_for_the_command_in_progress() -> None:
    async def scenario() -> None:
        broker = RecordingBroker()
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def held_up() -> None:
            begun.set()
            await go_on.wait()

        broker.before = held_up
        async with opened(broker) as (server, channels):
            asked = asyncio.create_task(channels.channel(server.registration()).update_metadata(update(1)))
            await begun.wait()
            closing = asyncio.create_task(server.close())
            with pytest.raises(ConnectionError):  # its outcome is unknown
                await asked
            assert not closing.done()
            go_on.set()
            await closing
            assert broker.commands == [update(1)]

    run(scenario())


def test_a_cancelled_command_is_executed_before_the_next_one() -> None:
    async def scenario() -> None:
        broker = RecordingBroker()
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def held_up() -> None:
            begun.set()
            await go_on.wait()

        broker.before = held_up
        async with opened(broker) as (server, channels):
            channel = channels.channel(server.registration())
            given_up = asyncio.create_task(channel.update_metadata(update(1)))
            await begun.wait()
            given_up.cancel()
            following = asyncio.create_task(channel.update_metadata(update(2)))
            await asyncio.sleep(0.1)
            go_on.set()
            assert await following == CommandResult()
            assert broker.commands == [update(1), update(2)]

    run(scenario())


def test_commands_for_an_earlier_registration_are_refused() -> None:
    async def scenario() -> None:
        broker = RecordingBroker()
        async with opened(broker, EPOCH + 1) as (server, channels):
            result = await channels.channel(server.registration(EPOCH)).update_metadata(update(1))
            assert result == CommandResult(ErrorCode.STALE_BROKER_EPOCH)
            assert broker.commands == []
            assert await channels.channel(server.registration(EPOCH + 1)).update_metadata(update(2))
            assert broker.commands == [update(2)]

    run(scenario())


def test_commands_wait_until_the_broker_knows_its_epoch() -> None:
    async def scenario() -> None:
        broker = RecordingBroker()
        async with opened(broker, None) as (server, channels):
            asked = asyncio.create_task(channels.channel(server.registration()).update_metadata(update(1)))
            await asyncio.sleep(0.1)
            assert broker.commands == []
            server.service.set_broker_epoch(EPOCH)
            assert await asked == CommandResult()
            assert broker.commands == [update(1)]

    run(scenario())


def test_a_command_for_an_unknown_later_registration_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_broker_commands, "EPOCH_WAIT_MS", 50)

    async def scenario() -> None:
        async with opened(RecordingBroker(), EPOCH - 1) as (server, channels):
            with pytest.raises(ConnectionError, match="this is broker 1 of epoch 99"):
                await channels.channel(server.registration()).update_metadata(update(1))

    run(scenario())


def test_another_broker_at_the_address_executes_nothing() -> None:
    async def scenario() -> None:
        broker = RecordingBroker()
        async with opened(broker) as (server, channels):
            other = server.registration()._replace(broker_id=2)
            with pytest.raises(ConnectionError, match="for broker 2"):
                await channels.channel(other).update_metadata(update(1))
            assert broker.commands == []

    run(scenario())


def test_a_copy_that_arrives_after_later_commands_is_not_executed() -> None:
    async def scenario() -> None:
        broker = RecordingBroker()
        async with opened(broker) as (server, channels):
            for number in (1, 2, 3):
                await channels.channel(server.registration()).update_metadata(update(number))
            late = all_at_once(command_message(update(1)))
            late.id, late.broker_id, late.broker_epoch = 1, 1, EPOCH
            async with open_channel(server.address, None, ServiceRole.BROKER) as channel:
                stream = BrokerCommandsStub(channel).Commands()
                await stream.write(late)
                answer = await stream.read()
                assert isinstance(answer, pb.CommandAnswer)
                assert answer.WhichOneof("outcome") == "not_carried_out"
                # The next controller starts its ids again.
                late.update_metadata.controller_epoch = 2
                await stream.write(late)
                answer = await stream.read()
                assert isinstance(answer, pb.CommandAnswer)
                assert answer.WhichOneof("outcome") == "result"
            assert broker.commands == [update(1), update(2), update(3), update(1, controller_epoch=2)]

    run(scenario())


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (
            KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, "no such directory"),
            "LOG_DIR_NOT_FOUND",
            "no such directory",
        ),
        (KafkaError(ErrorCode.POLICY_VIOLATION), "POLICY_VIOLATION", None),
        (OSError("disk full"), "KAFKA_STORAGE_ERROR", "disk full"),
        (RuntimeError("a bug"), "UNKNOWN_SERVER_ERROR", "RuntimeError('a bug')"),
    ],
)
def test_a_failed_command_is_reported(raised: Exception, code: str, message: str | None) -> None:
    async def scenario() -> None:
        broker = RecordingBroker()

        async def fails() -> None:
            raise raised

        broker.before = fails
        async with opened(broker) as (server, channels):
            channel = channels.channel(server.registration())
            with pytest.raises(KafkaError) as caught:
                await channel.update_metadata(update(1))
            assert (caught.value.code.name, caught.value.message) == (code, message)
            broker.before = None
            assert await channel.update_metadata(update(2)) == CommandResult()  # the stream continues

    run(scenario())


def test_a_command_of_an_unknown_kind_is_refused() -> None:
    async def scenario() -> None:
        async with (
            opened(RecordingBroker()) as (server, _),
            open_channel(server.address, None, ServiceRole.BROKER) as channel,
        ):
            stream = BrokerCommandsStub(channel).Commands()
            await stream.write(pb.Command(id=1, broker_id=1, broker_epoch=EPOCH))
            answer = await stream.read()
            assert isinstance(answer, pb.CommandAnswer)
            assert answer.failure.code == ErrorCode.UNSUPPORTED_VERSION

    run(scenario())


def test_metadata_of_2000_partitions_reaches_three_brokers() -> None:
    """The command is also far larger than gRPC's default limit of 4 MiB."""
    topic_id = uuid.UUID(int=1)
    states = tuple(
        PartitionState("t" * 200, topic_id, p, 1, 7, (1, 2, 3), (1, 2, 3), 1, partition_epoch=10**6 + p)
        for p in range(2000)
    )
    configs = {f"name-{n}": "x" * 1000 for n in range(6000)}
    command = UpdateMetadata(1, 1, (), (TopicState("t" * 200, topic_id, states, configs),), is_full=True)

    async def scenario() -> None:
        brokers = [RecordingBroker() for _ in range(3)]
        channels = GrpcBrokerChannels()
        servers = [CommandServer(broker, broker_id) for broker_id, broker in enumerate(brokers, 1)]
        for server in servers:
            await server.open()
        await asyncio.gather(*(channels.channel(d.registration()).update_metadata(command) for d in servers))
        assert [broker.commands for broker in brokers] == [[command]] * 3
        await channels.close()
        for server in servers:
            await server.close()

    run(scenario())


def test_the_sender_refuses_a_command_above_the_limit() -> None:
    command = UpdateMetadata(1, 1, (), broker_configs={"": {"name": "x" * (65 * 1024 * 1024)}})

    async def scenario() -> None:
        async with opened(RecordingBroker()) as (server, channels):
            with pytest.raises(KafkaError) as caught:
                await channels.channel(server.registration()).update_metadata(command)
            assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE

    run(scenario())


def test_two_servers_can_not_have_one_address() -> None:
    async def scenario() -> None:
        async with opened(RecordingBroker()) as (server, _):
            second = RpcServer(BrokerCommandsService(RecordingBroker(), 2))
            with pytest.raises(OSError, match="can't listen on"):
                await second.start(server.address)

    run(scenario())


def test_commands_in_progress_fail_when_channels_are_closed() -> None:
    async def scenario() -> None:
        broker = RecordingBroker()
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def held_up() -> None:
            begun.set()
            await go_on.wait()

        broker.before = held_up
        async with opened(broker) as (server, channels):
            asked = asyncio.create_task(channels.channel(server.registration()).update_metadata(update(1)))
            await begun.wait()
            await channels.close()
            with pytest.raises(ConnectionError):
                await asked
            go_on.set()

    run(scenario())


def test_the_metadata_for_several_brokers_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.kernel.slices.SLICE_MS", 0)  # so that the encoding is interrupted
    encodings = 0

    def counted(order: BrokerCommand) -> Steps[pb.Command]:
        nonlocal encodings
        encodings += 1
        return command_message(order)

    monkeypatch.setattr(grpc_broker_commands, "command_message", counted)

    async def scenario() -> None:
        deleted = tuple(DeletedTopic(f"t{number}", uuid.UUID(int=number)) for number in range(100))
        order = UpdateMetadata(1, 1, (), deleted_topics=deleted)
        brokers = [RecordingBroker() for _ in range(3)]
        channels = GrpcBrokerChannels()
        servers = [CommandServer(broker, number) for number, broker in enumerate(brokers, 1)]
        for server in servers:
            await server.open()
        await asyncio.gather(
            *(channels.channel(server.registration()).update_metadata(order) for server in servers)
        )
        assert [broker.commands for broker in brokers] == [[order]] * 3
        await channels.close()
        for server in servers:
            await server.close()

    run(scenario())
    assert encodings == 1
