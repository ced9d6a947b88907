"""A broker without sockets: real replicas and logs in a temporary directory, and a controller whose answers
the test sets.

Requests and responses pass through the codec and through the broker's own chain, up to a fake connection, so
a handler fails if its response cannot be encoded.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from brokerlab.in_memory_store import InMemoryStore
from tidelog.broker.log.log_directory import LogDirectory
from tidelog.broker.net.connection import Connection
from tidelog.broker.partition.events import VerificationAsked, VerifyTransaction
from tidelog.broker.partition.guards import NO_GUARD
from tidelog.broker.parts import BrokerParts, BrokerSurroundings
from tidelog.broker.requests.apis import APIS
from tidelog.broker.requests.chain import RequestChain
from tidelog.broker.requests.dispatch import Dispatcher
from tidelog.broker.requests.request import PARKED, EncodedBody, RequestContext
from tidelog.kernel.clock import ManualClock
from tidelog.kernel.slices import run_in_slices
from tidelog.kernel.steps import Steps, all_at_once
from tidelog.kernel.timer import VirtualTimer
from tidelog.metrics.telemetry import Telemetry
from tidelog.model.acl import ANONYMOUS, Principal
from tidelog.model.brokers import BrokerRegistration, Endpoint
from tidelog.records.batch import parse_header
from tidelog.records.builder import build_batch
from tidelog.records.record import Record
from tidelog.rpc.broker_commands import LeaderAndIsr, PartitionState, TopicState, UpdateMetadata
from tidelog.rpc.controller_api import ForwardedRequest, ProducerIdBlock
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.wire import codec
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.headers import decode_response_header, encode_request_header

CLUSTER_ID = "abcdefghijklmnopqrstuv"
BROKER_ID = 1
OTHER_BROKER_ID = 2
_SIZE_BYTES = 4
_LISTENER = "PLAINTEXT"


class ScriptedController:
    """A controller for tests. `answer` makes or raises the answer to a forwarded request; `forwarded` has all
    of them.
    """

    def __init__(self) -> None:
        self.forwarded: list[tuple[ApiKey, ForwardedRequest]] = []
        self.answer: Callable[[Any], Any] | None = None

    async def handle(self, api_key: int, request: ForwardedRequest) -> Any:
        self.forwarded.append((ApiKey(api_key), request))
        assert self.answer is not None, f"{ApiKey(api_key).name} must not be forwarded"
        # Between processes both are encoded, so the version must be able to express them.
        codec.request_encoder(api_key, request.api_version)(request.message)
        answer = self.answer(request.message)
        codec.response_encoder(api_key, request.api_version)(answer)
        return answer

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        return ProducerIdBlock(0)


class CopyingConnection(SimpleNamespace):
    """The connection of a request. It counts the `kept` bytes of copies, and `drop` drops these."""

    kept = 0

    def keep_copy(self, size_bytes: int, drop: Callable[[], object]) -> Callable[[], object]:
        self.kept += size_bytes
        self.drop = drop

        def forget() -> None:
            self.kept -= size_bytes

        return forget


class _Context(SimpleNamespace):
    """The context of a request, without a connection's order of responses."""

    def park(self, on_abandoned: Callable[[], None] | None = None) -> object:
        self.on_abandoned = on_abandoned
        return PARKED


def make_context(version: int, **fields: Any) -> Any:
    """Returns the context of a request for a handler. Responses that come later are added to its `answers`,
    unless `reply` takes them. Unless `fields` say so, its client has no quotas, and nothing edits responses.
    """
    context = _Context(
        api_version=version,
        client_id="test",
        host="127.0.0.1",
        principal=ANONYMOUS,
        listener_name=_LISTENER,
        traceparent="",
        edit=None,
        steps=None,
        charge=None,
        on_abandoned=None,
        answers=[],
    )
    context.reply = context.answers.append
    vars(context).update(fields)
    return context


class InMemoryBroker:
    """One broker, and methods that send it requests."""

    def __init__(self, directory: Path, settings: dict[str, str] | None = None) -> None:
        self._directory = directory
        self._settings = BrokerSettings.parse({"node.id": str(BROKER_ID), **(settings or {})})
        self.runner = asyncio.Runner()
        self.controller = ScriptedController()
        self.clock = ManualClock()
        self._open()

    def _open(self) -> None:
        self.store = InMemoryStore()
        around = BrokerSurroundings(
            CLUSTER_ID,
            LogDirectory.open(self._directory, cluster_id=CLUSTER_ID, node_id=BROKER_ID),
            self.store,
            self.controller,
            Telemetry(self.clock),
            self.clock,
            VirtualTimer(),
            random.Random(1),
        )
        self.broker = BrokerParts(self._settings, around)
        self.isr = self.broker.isr
        self.commands = self.broker.commands
        self.handlers = RequestChain(self.broker)
        self.update_metadata(is_full=True, broker_configs={})

    def close(self) -> None:
        self.runner.run(self.broker.hosting.close_all())
        self.runner.close()

    def reopen(self) -> None:
        """Stops the broker cleanly and starts it with the same data. The test must add the topics again."""
        self.runner.run(self.broker.hosting.close_all())
        self._open()

    def call(
        self,
        request: Any,
        version: int,
        *,
        listener_name: str = "PLAINTEXT",
        principal: Principal = ANONYMOUS,
    ) -> Any:
        """Returns the response to `request`. Both are encoded and decoded."""
        key = next(key for key in APIS if f"{ApiKey(key).name_in_kafka}Request" == type(request).__name__)
        encoded = b"".join(bytes(chunk) for chunk in codec.request_encoder(key, version)(request))
        handling = self.handlers.handling(key)
        decode = handling.decoder(version) if handling.decoder else codec.request_decoder(key, version)
        # the handler writes into the frame
        frame = memoryview(bytearray(encoded)) if key == ApiKey.PRODUCE else encoded
        message, end = decode(frame, 0)
        assert end == len(encoded)
        context = make_context(
            version,
            principal=principal,
            connection=SimpleNamespace(
                principal=principal,
                peer_host="127.0.0.1",
                budget_key="127.0.0.1",
                access=None,
                authentication=None,
                client_software=("", ""),
                loop=self.runner.get_loop(),
            ),
            listener_name=listener_name,
            route=SimpleNamespace(api_key=key, encode=codec.response_encoder(key, version)),
        )
        answer = handling.handle(message, context)

        def edited(answer: Any) -> Steps[Any]:
            if isinstance(answer, EncodedBody):
                answer = codec.response_decoder(key, version)(b"".join(map(bytes, answer.chunks)), 0)[0]
            edit, context.edit = context.edit, None
            if edit is not None:
                yield from edit(answer)
            return answer

        async def edited_later(answering: Coroutine[object, None, Any]) -> Any:
            return await run_in_slices(edited(await answering))

        if asyncio.iscoroutine(answer):
            answer = self.runner.run(edited_later(answer))
        else:
            answer = all_at_once(edited(answer))
        encoded = b"".join(bytes(chunk) for chunk in codec.response_encoder(key, version)(answer))
        decoded, end = codec.response_decoder(key, version)(encoded, 0)
        assert end == len(encoded)
        return decoded

    def handle(self, api_key: ApiKey, request: Any, context: RequestContext) -> Any:
        """Returns the handler's own result, without the codec."""
        return self.handlers.handling(api_key).handle(request, context)

    # -- commands of the controller

    def update_metadata(self, **changes: Any) -> None:
        endpoints = tuple(
            Endpoint(name, "127.0.0.1", port) for name, port in (("PLAINTEXT", 9092), ("INTERNAL", 9093))
        )
        brokers = (
            BrokerRegistration(BROKER_ID, 10, endpoints, "rack1"),
            BrokerRegistration(OTHER_BROKER_ID, 11, endpoints[:1]),
        )
        update = UpdateMetadata(controller_id=BROKER_ID, controller_epoch=7, brokers=brokers, **changes)
        self.runner.run(self.commands.update_metadata(update))

    def add_topic(
        self,
        name: str,
        partitions: int = 1,
        configs: dict[str, str] | None = None,
        *,
        leader: int = BROKER_ID,
        leader_epoch: int = 3,
    ) -> uuid.UUID:
        topic_id = uuid.uuid5(uuid.NAMESPACE_DNS, name)
        states = tuple(
            PartitionState(
                name, topic_id, index, leader, leader_epoch, (leader,), (leader,), 7, partition_epoch=1
            )
            for index in range(partitions)
        )
        if leader == BROKER_ID:
            command = LeaderAndIsr(BROKER_ID, 7, states, {name: configs or {}})
            self.runner.run(self.commands.leader_and_isr(command))
        self.update_metadata(topics=(TopicState(name, topic_id, states, configs or {}),))
        return topic_id

    def append(self, topic: str, count: int = 1, partition: int = 0, **producer: Any) -> None:
        """Appends one batch of `count` records. A batch of a transaction is appended as if its coordinator
        had verified it.
        """
        now_ms = self.clock.wall_ms()
        self.append_records(
            topic,
            [Record(number, now_ms, None, b"%d" % number, []) for number in range(count)],
            partition,
            **producer,
        )

    def append_records(self, topic: str, records: list[Record], partition: int = 0, **producer: Any) -> None:
        """Appends one batch with these records."""
        now_ms = self.clock.wall_ms()
        replica = self.broker.hosted.leader_replica(topic, partition)
        batch = memoryview(build_batch(records, **producer))
        asked = replica.core.step(VerificationAsked(parse_header(batch), False, now_ms))
        guard = next((effect.guard for effect in asked if isinstance(effect, VerifyTransaction)), NO_GUARD)
        replica.append(batch, 1, 9, now_ms, guard)


class Asked:
    """One request. `answer` is None until it has been answered."""

    def __init__(
        self,
        broker: BrokerParts,
        request: Any,
        version: int,
        *,
        client_id: str = "test",
        body: bytes | None = None,
        principal: Principal = ANONYMOUS,
    ) -> None:
        """If `body` is given, it is sent instead of the request's own body."""
        self.api_key = ApiKey(request.API_KEY)
        self.version = version
        self.answer: Any = None
        self.body: bytes | None = None
        self.is_closed = False
        self.muted_s = 0.0
        self.refused_because: str | None = None
        self.peer_host = "10.0.0.1"
        self.principal = principal
        self.budget_key = self.peer_host
        self.access: Any = None
        self.authentication = None
        self.gate = None
        self.last_active = 0.0
        self.listener_name = _LISTENER
        self.request_body = body or b"".join(
            map(bytes, codec.request_encoder(self.api_key, version)(request))
        )
        header = encode_request_header(self.api_key, version, 7, client_id)
        self._waiting: RequestContext | None = None
        self._dispatcher = Dispatcher(RequestChain(broker), broker.telemetry, broker.quotas)
        frame = memoryview(bytearray(header + self.request_body))
        self._dispatcher.dispatch(cast(Connection, self), frame)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    # -- the interface of a connection

    def wait_for(self, context: RequestContext) -> None:
        self._waiting = context

    def answer_now(self, _context: RequestContext, chunks: Sequence[Any]) -> None:
        assert self.answer is None, "answered twice"
        frame = b"".join(bytes(chunk) for chunk in chunks)[_SIZE_BYTES:]
        _, position = decode_response_header(frame, 0, self.api_key, self.version)
        self.body = frame[position:]
        self.answer, end = codec.response_decoder(self.api_key, self.version)(frame, position)
        assert end == len(frame)

    answer_later = answer_now

    def has_room_for_large_answer(self, frame_bytes: int) -> bool:
        return True

    def mute(self, duration_s: float) -> None:
        self.muted_s = max(self.muted_s, duration_s)

    def start_barrier(self) -> None: ...

    def end_barrier(self) -> None: ...

    def refuse(self, reason: str) -> None:
        self.refused_because = reason

    def close(self) -> None:
        """Simulates that the client closes the connection."""
        self.is_closed = True
        if self._waiting is not None:
            self._waiting.abandon()


async def until(condition: Callable[[], bool]) -> None:
    """Runs some iterations of the loop until the condition holds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - a thread reads real files
            await asyncio.sleep(0.001)
