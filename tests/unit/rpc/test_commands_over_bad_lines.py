"""Command streams over connections that break: a broker always receives the commands in their order."""

from __future__ import annotations

import asyncio
import random

import pytest

from brokerlab.tcp_relay import TcpRelay
from tidelog.model.brokers import BrokerRegistration
from tidelog.rpc import grpc_transport
from tidelog.rpc.broker_commands import CommandResult, LeaderAndIsr, StopReplica, UpdateMetadata
from tidelog.rpc.grpc_broker_commands import BrokerCommandsService, GrpcBrokerChannels
from tidelog.rpc.grpc_transport import RpcServer

EPOCH = 5
COMMANDS = 40


class SlowBroker:
    """Records begin and end of each command by its number. Each command takes some time."""

    def __init__(self, randomness: random.Random) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.together = 0
        self._in_work = 0
        self._random = randomness

    async def update_metadata(self, command: UpdateMetadata) -> CommandResult:
        self.begun.append(command.controller_id)
        self._in_work += 1
        self.together = max(self.together, self._in_work)
        await asyncio.sleep(self._random.uniform(0, 0.03))
        self._in_work -= 1
        self.ended.append(command.controller_id)
        return CommandResult()

    async def leader_and_isr(self, command: LeaderAndIsr) -> CommandResult:
        raise AssertionError(command)

    async def stop_replica(self, command: StopReplica) -> CommandResult:
        raise AssertionError(command)


async def _send_all(channels: GrpcBrokerChannels, broker: BrokerRegistration) -> None:
    """Sends commands like the controller, one after the other, and repeats each until it is answered."""
    filling = "x" * 300_000  # so many bytes that some cuts are within a command
    for number in range(COMMANDS):
        command = UpdateMetadata(number, 1, (), broker_configs={"": {"filling": filling}})
        while True:
            try:
                await channels.channel(broker).update_metadata(command)
                break
            except ConnectionError:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("seed", range(4))
def test_commands_stay_in_order_when_connections_break(seed: int) -> None:
    async def scenario() -> None:
        randomness = random.Random(seed)
        broker = SlowBroker(randomness)
        service = BrokerCommandsService(broker, 1)
        service.set_broker_epoch(EPOCH)
        server, channels = RpcServer(service), GrpcBrokerChannels()
        address = await server.start("127.0.0.1:0")
        async with TcpRelay("127.0.0.1", int(address.rpartition(":")[2])) as relay:
            registration = BrokerRegistration(1, EPOCH, (), rpc_address=f"127.0.0.1:{relay.port}")
            sending = asyncio.create_task(_send_all(channels, registration))
            while not sending.done():
                await asyncio.sleep(randomness.uniform(0, 0.05))
                await relay.cut()
                if randomness.random() < 0.1:
                    await relay.refuse()
                    await asyncio.sleep(randomness.uniform(0, 0.1))
                    await relay.accept()
            await sending
        await channels.close()
        await server.stop()
        assert broker.begun == sorted(broker.begun)
        assert set(broker.begun) == set(range(COMMANDS))
        assert broker.ended == broker.begun  # no command was aborted
        assert broker.together == 1
        assert len(broker.begun) > COMMANDS  # some commands arrived twice, as the test intends

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_connection_that_loses_everything_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(grpc_transport._CHANNEL_OPTIONS) | {
        "grpc.keepalive_time_ms": 200,
        "grpc.keepalive_timeout_ms": 200,
        "grpc.http2.ping_timeout_ms": 200,
    }
    monkeypatch.setattr(grpc_transport, "_CHANNEL_OPTIONS", tuple(options.items()))

    async def scenario() -> None:
        service = BrokerCommandsService(SlowBroker(random.Random(0)), 1)
        service.set_broker_epoch(EPOCH)
        server, channels = RpcServer(service), GrpcBrokerChannels()
        address = await server.start("127.0.0.1:0")
        async with TcpRelay("127.0.0.1", int(address.rpartition(":")[2])) as relay:
            channel = channels.channel(
                BrokerRegistration(1, EPOCH, (), rpc_address=f"127.0.0.1:{relay.port}")
            )
            await channel.update_metadata(UpdateMetadata(1, 1, ()))
            relay.swallow()
            with pytest.raises(ConnectionError, match="ping timeout"):
                await channel.update_metadata(UpdateMetadata(2, 1, ()))
        await channels.close()
        await server.stop()

    asyncio.run(asyncio.wait_for(scenario(), 60))
