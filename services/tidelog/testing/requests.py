"""The requests of a test's own cluster: topics, records, groups. They go to a listener of their own, which
faults do not touch.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from tidelog.broker.requests.apis import APIS
from tidelog.client.partitioners import partition_for_key
from tidelog.client.shell.connection import api_key_of
from tidelog.model.acl import AclOperation, PatternType, PermissionType, ResourceType
from tidelog.model.errors import ErrorCode, TidelogError
from tidelog.model.protocol_values import READ_COMMITTED
from tidelog.records.aborted import visible_batches
from tidelog.records.builder import build_batch
from tidelog.records.record import Record as BatchRecord
from tidelog.records.record import iterate_records
from tidelog.settings.setting_description import ConfigSource
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.codec import request_encoder, response_decoder
from tidelog.wire.headers import decode_response_header, encode_request_header
from tidelog.wire.messages import (
    alter_client_quotas,
    alter_user_scram_credentials,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_configs,
    describe_user_scram_credentials,
    fetch,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    produce,
)
from tidelog.wire.schema import Message

TIMEOUT_S: Final = 10.0
"""The time that one request, or the retries of one, may take."""
RETRY_S: Final = 0.02
MAX_BATCH_BYTES: Final = 512 * 1024
FETCH_BYTES: Final = 8 * 1024 * 1024
CLIENT_ID: Final = "tidelog.testing"
_EARLIEST, _LATEST = -2, -1
_HIGH_WATERMARK: Final = -1
_BROKER: Final = 4
"""The type of a broker in Kafka's ConfigResource."""
_CHANGED_SETTINGS: Final = frozenset(
    {ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG}
)
_MISSING: Final = "it does not exist; create_topic or produce creates it"
_LENGTH: Final = struct.Struct(">i")
_LAST_BY_NAME: Final = {ApiKey.PRODUCE: 12, ApiKey.FETCH: 12, ApiKey.DELETE_TOPICS: 5}
"""The newest versions that name topics. Later ones identify them by their ids."""
_WITHOUT_MEMBER_ID: Final = {ApiKey.JOIN_GROUP: 3, ApiKey.FIND_COORDINATOR: 3, ApiKey.LEAVE_GROUP: 2}
"""The newest versions in which a member joins with one request, and names one key or member."""
_VERSIONS: Final = {**_LAST_BY_NAME, **_WITHOUT_MEMBER_ID}

_ALL_ACLS: Final = (
    *(ResourceType.ANY, None, PatternType.ANY),
    *(None, None, AclOperation.ANY, PermissionType.ANY),
)
"""The fields of a filter that all ACLs match."""

R = TypeVar("R", bound=Message)
F = TypeVar("F")
Value = str | bytes | None
Keyed = Value | tuple[Value, Value]


class RequestFailedError(TidelogError):
    """The cluster refused a request of the test, or did not answer it in time. `code` is Kafka's error code,
    None if there was no answer.
    """

    def __init__(self, reason: str, code: ErrorCode | None = None) -> None:
        super().__init__(reason)
        self.code = code


class Record(NamedTuple):
    """A record in a topic. `timestamp_ms` is in milliseconds since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Broker(NamedTuple):
    """A running broker, and the port of the listener for these requests."""

    broker_id: int
    port: int


class Requests:
    """Sends requests from the event loop of the cluster. `brokers` are those that answer."""

    def __init__(self) -> None:
        self.brokers: Sequence[Broker] = ()

    async def ask(
        self, request: Message, answer: type[R], broker_id: int | None = None, *, wait_s: float = 0.0
    ) -> R:
        """Returns the response of a broker, or of any broker. The broker may wait for `wait_s` on purpose.
        Raises RequestFailedError.
        """
        broker = self._broker(broker_id)
        api_key = api_key_of(request)
        name = ApiKey(api_key).name_in_kafka
        try:
            async with asyncio.timeout(TIMEOUT_S + wait_s):
                return await _exchange(broker.port, api_key, request, answer)
        except TimeoutError as error:
            raise RequestFailedError(
                f"broker {broker.broker_id} did not answer {name} within {TIMEOUT_S + wait_s:g} s"
            ) from error
        except (OSError, EOFError) as error:
            raise RequestFailedError(
                f"broker {broker.broker_id} did not answer {name}: {error or 'the connection ended'}"
            ) from error

    def _broker(self, broker_id: int | None) -> Broker:
        found = [each for each in self.brokers if broker_id is None or each.broker_id == broker_id]
        if not found:
            what = "no broker answers" if broker_id is None else f"broker {broker_id} does not answer"
            raise RequestFailedError(
                f"{what}, because it was killed or is paused; start_broker or resume changes that"
            )
        return found[0]

    # -- topics

    async def topics(self) -> list[metadata.MetadataResponseTopic]:
        """Returns all topics, including internal ones."""
        answer = await self.ask(metadata.MetadataRequest(topics=None), metadata.MetadataResponse)
        return answer.topics

    async def topic(self, name: str) -> metadata.MetadataResponseTopic:
        """Returns a topic whose partitions all have leaders that answer. Waits if the broker that is asked
        does not know yet that a leader was killed. Raises RequestFailedError.
        """
        request = metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
        )
        until_s = time.monotonic() + TIMEOUT_S
        while True:
            topic = (await self.ask(request, metadata.MetadataResponse)).topics[0]
            codes = [topic.error_code, *(each.error_code for each in topic.partitions)]
            code = next((code for code in codes if code), 0)
            is_missing = topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            answering = {broker.broker_id for broker in self.brokers}
            is_led = not code and all(each.leader_id in answering for each in topic.partitions)
            if is_led or is_missing or time.monotonic() > until_s:
                _require(code, f"topic {name}", _MISSING if is_missing else None)
                return topic
            await asyncio.sleep(RETRY_S)

    async def create_topic(
        self, name: str, partitions: int, replication_factor: int, configs: dict[str, str]
    ) -> None:
        """Raises RequestFailedError."""
        created = create_topics.CreatableTopic(
            name,
            partitions,
            replication_factor,
            configs=[create_topics.CreatableTopicConfig(key, value) for key, value in configs.items()],
        )
        request = create_topics.CreateTopicsRequest([created], timeout_ms=int(TIMEOUT_S * 1000))
        result = (await self.ask(request, create_topics.CreateTopicsResponse)).topics[0]
        _require(result.error_code, f"topic {name}", result.error_message)
        await self.topic(name)

    async def delete_topics(self, names: list[str]) -> None:
        """Raises RequestFailedError."""
        request = delete_topics.DeleteTopicsRequest(topic_names=names, timeout_ms=int(TIMEOUT_S * 1000))
        for result in (await self.ask(request, delete_topics.DeleteTopicsResponse)).responses:
            _require(result.error_code, f"topic {result.name}", result.error_message)

    async def delete_records(self, topic: str, partitions: Iterable[int] | None) -> None:
        """Deletes the records below the high watermark. Raises RequestFailedError."""
        found = await self.topic(topic)
        wanted = None if partitions is None else set(partitions)
        for partition in wanted or ():
            require_partition(found, partition)
        for part in found.partitions:
            if wanted is None or part.partition_index in wanted:
                row = delete_records.DeleteRecordsPartition(part.partition_index, _HIGH_WATERMARK)
                request = delete_records.DeleteRecordsRequest(
                    [delete_records.DeleteRecordsTopic(topic, [row])], int(TIMEOUT_S * 1000)
                )
                answer = await self.ask(request, delete_records.DeleteRecordsResponse, part.leader_id)
                _require(answer.topics[0].partitions[0].error_code, f"topic {topic}")

    # -- records

    async def produce(
        self, topic: str, values: Sequence[Keyed], key: Value, partition: int | None, timestamp_ms: int
    ) -> list[Record]:
        """Appends records with acks=all and returns them. Creates a topic that does not exist. Raises
        RequestFailedError.
        """
        try:
            found = await self.topic(topic)
        except RequestFailedError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            try:
                await self.create_topic(topic, -1, -1, {})
            except RequestFailedError as refused:
                if refused.code != ErrorCode.TOPIC_ALREADY_EXISTS:  # a client has just created it
                    raise
            found = await self.topic(topic)
        count = len(found.partitions)
        if partition is not None:
            require_partition(found, partition)
        pairs_of_values = [_pair(value, key) for value in values]
        by_partition: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
        for number, (key_bytes, content) in enumerate(pairs_of_values):
            if partition is not None:
                index = partition
            elif key_bytes is not None:
                index = partition_for_key(key_bytes, count)
            else:
                index = number % count
            by_partition.setdefault(index, []).append((key_bytes, content))
        appended: list[Record] = []
        for index, pairs in sorted(by_partition.items()):
            for batch in _batches(pairs):
                first = await self._append(topic, index, batch, timestamp_ms)
                appended.extend(
                    Record(topic, index, first + number, timestamp_ms, *pair)
                    for number, pair in enumerate(batch)
                )
        return appended

    async def _append(
        self,
        topic: str,
        partition: int,
        pairs: Sequence[tuple[bytes | None, bytes | None]],
        timestamp_ms: int,
    ) -> int:
        records = (BatchRecord(number, timestamp_ms, *pair) for number, pair in enumerate(pairs))
        row = produce.PartitionProduceData(partition, memoryview(build_batch(records)))
        request = produce.ProduceRequest(
            acks=-1,
            timeout_ms=int(TIMEOUT_S * 1000),
            topic_data=[produce.TopicProduceData(topic, partition_data=[row])],
        )

        answer = await self._ask_leader(
            topic,
            partition,
            request,
            produce.ProduceResponse,
            lambda answer: answer.responses[0].partition_responses[0].error_code,
        )
        result = answer.responses[0].partition_responses[0]
        _require(result.error_code, f"topic {topic} partition {partition}", result.error_message)
        return result.base_offset

    async def _ask_leader(
        self,
        topic: str,
        partition: int,
        request: Message,
        answer: type[R],
        code_of: Callable[[R], int],
        leader: int | None = None,
    ) -> R:
        """Returns the response of the partition's leader, also if `leader` leads it no more."""
        until_s = time.monotonic() + TIMEOUT_S
        while True:
            if leader is None:
                parts = (await self.topic(topic)).partitions
                leader = next(part.leader_id for part in parts if part.partition_index == partition)
            response = await self.ask(request, answer, leader)
            if code_of(response) != ErrorCode.NOT_LEADER_OR_FOLLOWER or time.monotonic() > until_s:
                return response
            leader = None
            await asyncio.sleep(RETRY_S)

    async def records(self, topic: str) -> list[Record]:
        """Returns the committed records in the order of their partitions and offsets. Raises
        RequestFailedError.
        """
        found = await self.topic(topic)
        return [
            record
            for part in sorted(found.partitions, key=lambda part: part.partition_index)
            for record in await self._records_of(topic, part.partition_index, part.leader_id)
        ]

    async def ends(self, topic: metadata.MetadataResponseTopic) -> dict[int, int]:
        """Returns the offset after the last committed record of each partition. Raises RequestFailedError."""
        name = topic.name or ""
        return {
            part.partition_index: await self._offset(name, part.partition_index, part.leader_id, _LATEST)
            for part in topic.partitions
        }

    async def _records_of(self, topic: str, partition: int, leader: int) -> list[Record]:
        offset = await self._offset(topic, partition, leader, _EARLIEST)
        end = await self._offset(topic, partition, leader, _LATEST)
        records: list[Record] = []
        while offset < end:
            row = fetch.FetchPartition(partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
            request = fetch.FetchRequest(
                max_bytes=FETCH_BYTES,
                isolation_level=READ_COMMITTED,
                topics=[fetch.FetchTopic(topic, partitions=[row])],
            )
            answer = await self._ask_leader(
                topic,
                partition,
                request,
                fetch.FetchResponse,
                lambda answer: answer.responses[0].partitions[0].error_code,
                leader,
            )
            data = answer.responses[0].partitions[0]
            _require(data.error_code, f"topic {topic} partition {partition}")
            read, following = _committed(data, topic, partition, offset)
            if following == offset:
                break  # the topic became shorter meanwhile
            records.extend(record for record in read if record.offset < end)
            offset = following
        return records

    async def _offset(self, topic: str, partition: int, leader: int, timestamp: int) -> int:
        row = list_offsets.ListOffsetsPartition(partition, timestamp=timestamp)
        request = list_offsets.ListOffsetsRequest(
            -1, READ_COMMITTED, [list_offsets.ListOffsetsTopic(topic, [row])]
        )
        answer = await self._ask_leader(
            topic,
            partition,
            request,
            list_offsets.ListOffsetsResponse,
            lambda answer: answer.topics[0].partitions[0].error_code,
            leader,
        )
        result = answer.topics[0].partitions[0]
        _require(result.error_code, f"topic {topic} partition {partition}")
        return result.offset

    # -- what is left after a test

    async def delete_all_groups(self) -> bool:
        """Deletes all groups. Returns whether that is done: a group with members cannot be deleted."""
        for broker in self.brokers:
            groups = await self.ask(
                list_groups.ListGroupsRequest(), list_groups.ListGroupsResponse, broker.broker_id
            )
            if groups.error_code:
                return False
            names = [group.group_id for group in groups.groups]
            if not names:
                continue
            deleted = await self.ask(
                delete_groups.DeleteGroupsRequest(names), delete_groups.DeleteGroupsResponse, broker.broker_id
            )
            if any(result.error_code for result in deleted.results):
                return False
        return True

    async def delete_users(self) -> None:
        """Deletes the SCRAM credentials of all users. Raises RequestFailedError."""

        async def found(broker_id: int) -> list[alter_user_scram_credentials.ScramCredentialDeletion]:
            answer = await self.ask(
                describe_user_scram_credentials.DescribeUserScramCredentialsRequest(None),
                describe_user_scram_credentials.DescribeUserScramCredentialsResponse,
                broker_id,
            )
            _require(answer.error_code, "users", answer.error_message)
            return [
                alter_user_scram_credentials.ScramCredentialDeletion(result.user, info.mechanism)
                for result in answer.results
                for info in result.credential_infos
            ]

        async def delete(rows: list[alter_user_scram_credentials.ScramCredentialDeletion]) -> None:
            answer = await self.ask(
                alter_user_scram_credentials.AlterUserScramCredentialsRequest(rows),
                alter_user_scram_credentials.AlterUserScramCredentialsResponse,
            )
            for result in answer.results:
                if result.error_code != ErrorCode.RESOURCE_NOT_FOUND:  # it is deleted already
                    _require(result.error_code, f"user {result.user}", result.error_message)

        await self._until_gone("users", found, delete)

    async def delete_acls(self) -> None:
        """Deletes all ACLs. Raises RequestFailedError."""

        async def found(broker_id: int) -> list[describe_acls.DescribeAclsResource]:
            answer = await self.ask(
                describe_acls.DescribeAclsRequest(*_ALL_ACLS), describe_acls.DescribeAclsResponse, broker_id
            )
            if answer.error_code == ErrorCode.SECURITY_DISABLED:
                return []
            _require(answer.error_code, "ACLs", answer.error_message)
            return answer.resources

        async def delete(_: list[describe_acls.DescribeAclsResource]) -> None:
            request = delete_acls.DeleteAclsRequest([delete_acls.DeleteAclsFilter(*_ALL_ACLS)])
            (result,) = (await self.ask(request, delete_acls.DeleteAclsResponse)).filter_results
            _require(result.error_code, "ACLs", result.error_message)
            for acl in result.matching_acls:
                _require(acl.error_code, "ACLs", acl.error_message)

        await self._until_gone("ACLs", found, delete)

    async def delete_quotas(self) -> None:
        """Deletes the quotas of all clients. Raises RequestFailedError."""

        async def found(broker_id: int) -> list[describe_client_quotas.EntryData]:
            answer = await self.ask(
                describe_client_quotas.DescribeClientQuotasRequest(),
                describe_client_quotas.DescribeClientQuotasResponse,
                broker_id,
            )
            _require(answer.error_code, "quotas", answer.error_message)
            return answer.entries or []

        async def delete(rows: list[describe_client_quotas.EntryData]) -> None:
            entries = [
                alter_client_quotas.RequestEntryData(
                    [
                        alter_client_quotas.EntityData(part.entity_type, part.entity_name)
                        for part in row.entity
                    ],
                    [alter_client_quotas.OpData(value.key, remove=True) for value in row.values],
                )
                for row in rows
            ]
            request = alter_client_quotas.AlterClientQuotasRequest(entries)
            for result in (await self.ask(request, alter_client_quotas.AlterClientQuotasResponse)).entries:
                _require(result.error_code, "quotas", result.error_message)

        await self._until_gone("quotas", found, delete)

    async def _until_gone(
        self,
        what: str,
        found: Callable[[int], Awaitable[list[F]]],
        delete: Callable[[list[F]], Awaitable[None]],
    ) -> None:
        """Deletes what a broker has, and waits until all brokers know that it is gone."""
        until_s = time.monotonic() + TIMEOUT_S
        for broker in self.brokers:
            while rows := await found(broker.broker_id):
                if time.monotonic() > until_s:
                    raise RequestFailedError(f"broker {broker.broker_id} still has {what}")
                await delete(rows)
                await asyncio.sleep(RETRY_S)

    async def has_broker_settings(self) -> bool:
        """Returns whether a setting of the brokers was changed since their start."""
        for broker in self.brokers:
            resource = describe_configs.DescribeConfigsResource(_BROKER, str(broker.broker_id), None)
            answer = await self.ask(
                describe_configs.DescribeConfigsRequest([resource]),
                describe_configs.DescribeConfigsResponse,
                broker.broker_id,
            )
            rows = [row for result in answer.results for row in result.configs]
            if not rows or any(row.config_source in _CHANGED_SETTINGS for row in rows):
                return True
        return False

    async def has_transactions(self) -> bool:
        """Returns whether a transaction is under way."""
        for broker in self.brokers:
            answer = await self.ask(
                list_transactions.ListTransactionsRequest(["Ongoing", "PrepareCommit", "PrepareAbort"]),
                list_transactions.ListTransactionsResponse,
                broker.broker_id,
            )
            if answer.error_code or answer.transaction_states:
                return True
        return False


async def _exchange(port: int, api_key: int, request: Message, answer: type[R]) -> R:
    version = _VERSIONS.get(ApiKey(api_key), APIS[api_key].max_version)
    header, body = encode_request_header(api_key, version, 1, CLIENT_ID), request_encoder(api_key, version)
    frame = b"".join(map(bytes, (header, *body(request))))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(_LENGTH.pack(len(frame)) + frame)
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        response = await reader.readexactly(length)
    finally:
        writer.close()
    _, position = decode_response_header(response, 0, api_key, version)
    message = response_decoder(api_key, version)(response, position)[0]
    assert isinstance(message, answer)
    return message


def _require(code: int, what: str, reason: str | None = None) -> None:
    if code:
        error = ErrorCode(code)
        raise RequestFailedError(f"{what}: {error.name}{': ' + reason if reason else ''}", error)


def require_partition(topic: metadata.MetadataResponseTopic, partition: int) -> None:
    """Raises RequestFailedError if a topic does not have this partition."""
    count = len(topic.partitions)
    if not 0 <= partition < count:
        raise RequestFailedError(f"topic {topic.name} has {count} partitions, so there is no {partition}")


def _pair(value: Keyed, key: Value) -> tuple[bytes | None, bytes | None]:
    """Returns the key and the value of a record; `key` is for values without one. Raises TypeError."""
    if isinstance(value, tuple) and len(value) == 2:
        key, value = value
    return _encoded(key, "key"), _encoded(value, "value")


def _encoded(value: object, what: str) -> bytes | None:
    """Returns the bytes of a key or value. Raises TypeError for what callers without a type checker pass."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    advice = "pass each value as an argument of its own" if isinstance(value, list) else "encode it first"
    raise TypeError(f"a {what} is a text, bytes or None, not {value!r}; {advice}")


def _batches(
    pairs: Sequence[tuple[bytes | None, bytes | None]],
) -> Iterable[Sequence[tuple[bytes | None, bytes | None]]]:
    """Splits records into batches of about MAX_BATCH_BYTES."""
    start = size = 0
    for number, (key, value) in enumerate(pairs):
        size += len(key or b"") + len(value or b"")
        if size > MAX_BATCH_BYTES and number > start:
            yield pairs[start:number]
            start, size = number, len(key or b"") + len(value or b"")
    yield pairs[start:]


def _committed(
    data: fetch.PartitionData, topic: str, partition: int, offset: int
) -> tuple[list[Record], int]:
    """Returns the records from `offset` on, without markers and aborted transactions, and the offset after
    the batches.
    """
    raw = memoryview(data.records or b"")  # type: ignore[arg-type]  # decoded responses hold views
    aborted = [(row.first_offset, row.producer_id) for row in data.aborted_transactions or ()]
    records: list[Record] = []
    for position, header, is_visible in visible_batches(raw, aborted, checks_crc=False):
        if is_visible:
            records.extend(
                Record(topic, partition, record.offset, record.timestamp, *record[2:5])
                for record in iterate_records(raw, position)
                if record.offset >= offset
            )
        offset = max(offset, header.last_offset + 1)
    return records, offset
