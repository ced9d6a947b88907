"""Each call is accepted from the permitted roles only, and a service speaks only in its own name."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.local_cluster.certificate_authority import CertificateAuthority
from tidelog.kernel.instants import WallMs
from tidelog.model.brokers import BrokerRegistration
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.broker_commands import CommandResult, LeaderAndIsr, StopReplica, UpdateMetadata
from tidelog.rpc.controller_api import ForwardedRequest, ProducerIdBlock
from tidelog.rpc.coordinator_session import Hello, Item, SessionLine, Welcome
from tidelog.rpc.generated import broker_commands_pb2 as commands_pb
from tidelog.rpc.generated import controller_api_pb2 as pb
from tidelog.rpc.generated import coordinator_session_pb2 as session_pb
from tidelog.rpc.generated.controller_api_pb2_grpc import ControllerApiStub
from tidelog.rpc.grpc_broker_commands import BrokerCommandsService, GrpcBrokerChannels
from tidelog.rpc.grpc_controller import ControllerApiService
from tidelog.rpc.grpc_sessions import CoordinatorSessionsService, GrpcSessionConnector
from tidelog.rpc.grpc_transport import RpcServer, open_channel
from tidelog.rpc.peer_tls import (
    PERMITTED_CALLERS,
    PeerTls,
    ServiceRole,
    caller_named,
    certificate_names,
    role_name,
)
from tidelog.wire.schema import Message

TIMEOUT_S: Final = 20.0
NAME: Final = "tidelog"
ALL_ROLES: Final = (NAME, *(role_name(role, NAME) for role in ServiceRole))
METHODS: Final = {
    f"/{service.full_name}/{method.name}"
    for module in (commands_pb, pb, session_pb)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


class Everything:
    """A broker's commands, a controller and an acceptor of sessions that accept everything."""

    async def leader_and_isr(self, command: LeaderAndIsr) -> CommandResult:
        return CommandResult()

    async def update_metadata(self, command: UpdateMetadata) -> CommandResult:
        return CommandResult()

    async def stop_replica(self, command: StopReplica) -> CommandResult:
        return CommandResult()

    async def handle(self, api_key: int, request: ForwardedRequest) -> Message:
        raise KafkaError(ErrorCode.NOT_CONTROLLER)

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> tuple[TopicPartition, ...]:
        return ()

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        return ProducerIdBlock(0)

    def accept(self, line: SessionLine) -> Greeter:
        return Greeter(line)


class Greeter:
    def __init__(self, line: SessionLine) -> None:
        self._line = line

    def received(self, items: list[Item]) -> None:
        if type(items[0]) is Hello:
            self._line.send(Welcome(1, 1))

    def closed(self) -> None: ...


class Certificates:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._now_ms = WallMs(time.time_ns() // 1_000_000)
        self._authority = CertificateAuthority.open(directory / "authority", now_ms=self._now_ms)

    def of(self, *names: str, checks_roles: bool = True) -> PeerTls:
        directory = self._directory / "-".join(names)
        files = self._authority.issue(directory, names, now_ms=self._now_ms)
        return PeerTls(*map(str, files), checks_roles=checks_roles)

    def of_service(self, role: ServiceRole, service_id: int) -> PeerTls:
        return self.of(*certificate_names(role, service_id, NAME))


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def run(scenario: Awaitable[None]) -> None:
    async def in_time() -> None:
        await asyncio.wait_for(scenario, 60)

    asyncio.run(in_time())


class Server:
    """All services of tidelog at one address."""

    def __init__(self, tls: PeerTls) -> None:
        everything = Everything()
        commands = BrokerCommandsService(everything, 1)
        commands.set_broker_epoch(1)
        self._server = RpcServer(
            commands, ControllerApiService(everything), CoordinatorSessionsService(everything), tls=tls
        )
        self.address = ""

    async def __aenter__(self) -> Server:
        self.address = await self._server.start("127.0.0.1:0")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()

    def broker(self) -> BrokerRegistration:
        return BrokerRegistration(1, 1, (), rpc_address=self.address)


async def status(channel: grpc.aio.Channel, method: str) -> grpc.StatusCode:
    """Calls a method with one empty message and returns the status of the call."""
    call: grpc.aio.StreamStreamCall[bytes, bytes] | grpc.aio.UnaryUnaryCall[bytes, bytes]
    if method.startswith("/tidelog.rpc.v1.ControllerApi/"):
        call = channel.unary_unary(method)(b"", timeout=TIMEOUT_S)
    else:
        stream: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(method)(timeout=TIMEOUT_S)
        await stream.done_writing()
        call = stream
    return await call.code()


def test_every_call_has_permitted_callers() -> None:
    assert set(PERMITTED_CALLERS) == METHODS
    assert all(PERMITTED_CALLERS.values())


@pytest.mark.parametrize("role", [*ServiceRole, None])
def test_each_call_is_accepted_from_its_callers_only(
    certificates: Certificates, role: ServiceRole | None
) -> None:
    names = (NAME,) if role is None else certificate_names(role, 3, NAME)

    async def scenario() -> None:
        async with (
            Server(certificates.of(*ALL_ROLES)) as server,
            open_channel(server.address, certificates.of(*names), ServiceRole.BROKER) as channel,
        ):
            for method in METHODS:
                code = await status(channel, method)
                is_permitted = role in PERMITTED_CALLERS[method]
                assert (code is grpc.StatusCode.OK) is is_permitted, method
                assert (code is grpc.StatusCode.PERMISSION_DENIED) is not is_permitted, method

    run(scenario())


def test_a_call_that_is_not_in_the_table_is_refused(certificates: Certificates) -> None:
    class Unlisted:
        def add_to(self, server: grpc.aio.Server) -> None:
            async def say(request: bytes, context: object) -> bytes:
                return request

            method = grpc.unary_unary_rpc_method_handler(say)
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("x.Y", {"Z": method}),))

        async def stop(self) -> None: ...

    async def scenario() -> None:
        tls = certificates.of(*ALL_ROLES)
        server = RpcServer(Unlisted(), tls=tls)
        address = await server.start("127.0.0.1:0")
        async with open_channel(address, tls, ServiceRole.BROKER) as channel:
            assert await channel.unary_unary("/x.Y/Z")(b"").code() is grpc.StatusCode.PERMISSION_DENIED
        await server.stop()

    run(scenario())


def test_a_client_connects_only_to_the_role_that_it_calls(certificates: Certificates) -> None:
    async def scenario() -> None:
        broker, controller = (certificates.of_service(role, 1) for role in list(ServiceRole)[:2])
        async with Server(controller) as server:
            async with open_channel(server.address, broker, ServiceRole.CONTROLLER) as channel:
                handle = "/tidelog.rpc.v1.ControllerApi/Handle"
                assert await status(channel, handle) is grpc.StatusCode.OK
            async with open_channel(server.address, broker, ServiceRole.BROKER) as channel:
                assert await status(channel, handle) is grpc.StatusCode.UNAVAILABLE

    run(scenario())


def test_a_broker_speaks_only_in_its_own_name(certificates: Certificates) -> None:
    async def scenario() -> None:
        async with (
            Server(certificates.of(*ALL_ROLES)) as server,
            open_channel(
                server.address, certificates.of_service(ServiceRole.BROKER, 3), ServiceRole.CONTROLLER
            ) as channel,
        ):
            stub = ControllerApiStub(channel)
            for broker_id, refused in ((3, False), (4, True)):
                stopped = await stub.ControlledShutdown(pb.ControlledShutdownRequest(broker_id=broker_id))
                block = await stub.AllocateProducerIds(pb.AllocateProducerIdsRequest(broker_id=broker_id))
                for answer in (stopped, block):
                    assert (answer.WhichOneof("outcome") == "refusal") is refused
                    if refused:
                        assert answer.refusal.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    run(scenario())


def test_a_controller_speaks_only_in_its_own_name(certificates: Certificates) -> None:
    async def scenario() -> None:
        channels = GrpcBrokerChannels(certificates.of_service(ServiceRole.CONTROLLER, 3))
        async with Server(certificates.of(*ALL_ROLES)) as server:
            channel = channels.channel(server.broker())
            assert (await channel.update_metadata(UpdateMetadata(3, 1, ()))).error is ErrorCode.NONE
            with pytest.raises(KafkaError, match="is of controller 3 and must not be used for controller 4"):
                await channel.update_metadata(UpdateMetadata(4, 1, ()))
            await channels.close()

    run(scenario())


def test_a_coordinator_speaks_only_in_its_own_name(certificates: Certificates) -> None:
    class End:
        def __init__(self) -> None:
            self.outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def received(self, items: list[Item]) -> None:
            self.outcome.set_result("welcome")

        def closed(self) -> None:
            self.outcome.set_result("closed")

    async def scenario() -> None:
        connector = GrpcSessionConnector(certificates.of_service(ServiceRole.GROUP_COORDINATOR, 3))
        async with Server(certificates.of(*ALL_ROLES)) as server:
            for coordinator_id, expected in ((3, "welcome"), (4, "closed")):
                end = End()
                line = connector.connect(server.broker(), end)
                line.send(Hello(coordinator_id))
                assert await asyncio.wait_for(end.outcome, TIMEOUT_S) == expected
                line.close()
            await connector.close()

    run(scenario())


def test_without_the_check_of_roles_any_certificate_of_the_authority_is_accepted(
    certificates: Certificates,
) -> None:
    async def scenario() -> None:
        tls = certificates.of(NAME, checks_roles=False)
        async with Server(tls) as server, open_channel(server.address, tls, ServiceRole.BROKER) as channel:
            for method in METHODS:
                assert await status(channel, method) is grpc.StatusCode.OK

    run(scenario())


def test_expired_certificates_are_renewed_without_a_restart(tmp_path: Path) -> None:
    """Both sides keep their objects; only the files change."""
    now_ms = time.time_ns() // 1_000_000
    authority = CertificateAuthority.open(tmp_path / "authority", now_ms=WallMs(now_ms - 7_200_000))
    names = {role: certificate_names(role, 1, NAME) for role in ServiceRole}

    def short_lived(role: ServiceRole) -> PeerTls:
        an_hour_ago, half_an_hour = WallMs(now_ms - 3_600_000), datetime.timedelta(minutes=30)
        directory = tmp_path / role.value
        files = authority.issue(directory, names[role], now_ms=an_hour_ago, validity=half_an_hour)
        return PeerTls(*map(str, files))

    async def scenario() -> None:
        controller, broker = short_lived(ServiceRole.CONTROLLER), short_lived(ServiceRole.BROKER)
        async with Server(controller) as server:

            async def attempt() -> grpc.StatusCode:
                async with open_channel(server.address, broker, ServiceRole.CONTROLLER) as channel:
                    return await status(channel, "/tidelog.rpc.v1.ControllerApi/ControlledShutdown")

            assert await attempt() is grpc.StatusCode.UNAVAILABLE
            for role in (ServiceRole.CONTROLLER, ServiceRole.BROKER):
                assert authority.renew(tmp_path / role.value, names[role], now_ms=WallMs(now_ms))
            assert await attempt() is grpc.StatusCode.OK

    run(scenario())


@given(st.lists(st.from_regex(r"(broker|controller|x|\*)?(-[0-9]{1,2})?(\.tidelog|\.evil)?", fullmatch=True)))
def test_only_exact_names_give_roles_and_ids(names: list[str]) -> None:
    caller = caller_named(names, NAME)
    for role in ServiceRole:
        of_role = [name for name in names if name.endswith(".tidelog") and name.startswith(role.value)]
        if not of_role:
            assert role not in caller.roles
    ids = {name for name in names if name == "broker-7.tidelog"}
    if "broker.tidelog" in names and len([n for n in names if n.startswith("broker-")]) == len(ids):
        assert caller.may_speak_for(ServiceRole.BROKER, 7)
        assert caller.may_speak_for(ServiceRole.BROKER, 8) is not bool(ids)


@pytest.mark.parametrize(
    "name",
    ["broker", "broker.tidelog.evil", "evil.broker.tidelog", "broker-.tidelog", "broker-01.tidelog", ""],
)
def test_other_names_give_no_role(name: str) -> None:
    assert not caller_named([name], NAME).roles
