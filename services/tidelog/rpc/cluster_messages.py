"""Converts brokers, partitions and refusals to the messages of protos/tidelog/rpc/v1/cluster.proto and back,
and checks names and numbers where the messages of other services arrive.

A topic name becomes the name of a directory, and a number becomes an offset in a file, so a wrong value is
refused before any code uses it, whoever sent it. Every check raises ValueError with one sentence, and the
whole message is then refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Final

from tidelog.model.brokers import MAX_PORT, BrokerRegistration, Endpoint
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition, topic_name_problem
from tidelog.rpc.generated import cluster_pb2 as pb

MAX_PROBLEM_CHARS: Final = 400
"""Length of a reported problem, which contains the name."""


def topic_name(name: str) -> str:
    problem = topic_name_problem(name)
    if problem is not None:
        raise ValueError(problem[:MAX_PROBLEM_CHARS])
    return name


def peer_partition(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(topic_name(topic), not_negative("partition", partition))


def not_negative(what: str, number: int) -> int:
    """Checks an id, epoch, offset or count."""
    if number < 0:
        raise ValueError(f"the {what} {number} is negative")
    return number


def known_or_none(what: str, number: int) -> int:
    """Checks a number for which -1 stands for "none" or "unknown"."""
    if number < -1:
        raise ValueError(f"the {what} {number} is less than -1")
    return number


def broker_ids(what: str, ids: Iterable[int]) -> tuple[int, ...]:
    checked = tuple(ids)
    if checked and min(checked) < 0:
        raise ValueError(f"the {what} {checked} contains a negative broker id")
    return checked


def port(number: int) -> int:
    if not 0 <= number <= MAX_PORT:
        raise ValueError(f"the port {number} is not between 0 and {MAX_PORT}")
    return number


def topic_ids(ids: Mapping[str, bytes]) -> dict[str, uuid.UUID]:
    return {topic_name(topic): uuid.UUID(bytes=topic_id) for topic, topic_id in ids.items()}


def registration_message(broker: BrokerRegistration) -> pb.BrokerRegistration:
    return pb.BrokerRegistration(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        endpoints=[
            pb.Endpoint(
                listener_name=endpoint.listener_name,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=endpoint.security_protocol,
            )
            for endpoint in broker.endpoints
        ],
        rack=broker.rack,
        rpc_address=broker.rpc_address,
        is_log_suspect=broker.is_log_suspect,
        suspect_partitions=[partition_message(partition) for partition in broker.suspect_partitions],
    )


def registration(message: pb.BrokerRegistration) -> BrokerRegistration:
    """Raises ValueError if a name or number is invalid."""
    return BrokerRegistration(
        not_negative("broker id", message.broker_id),
        message.broker_epoch,
        tuple(
            Endpoint(endpoint.listener_name, endpoint.host, port(endpoint.port), endpoint.security_protocol)
            for endpoint in message.endpoints
        ),
        message.rack if message.HasField("rack") else None,
        message.rpc_address,
        message.is_log_suspect,
        tuple(topic_partition(partition) for partition in message.suspect_partitions),
    )


def partition_message(partition: TopicPartition) -> pb.TopicPartition:
    return pb.TopicPartition(topic=partition.topic, partition=partition.partition)


def topic_partition(message: pb.TopicPartition) -> TopicPartition:
    """Raises ValueError if the topic name or the partition is invalid."""
    return peer_partition(message.topic, message.partition)


def refusal_message(error: KafkaError) -> pb.Refusal:
    return pb.Refusal(code=error.code, message=error.message)


def refusal(message: pb.Refusal) -> KafkaError:
    """Returns the error of a refusal. An unknown code becomes UNKNOWN_SERVER_ERROR, with its number in the
    message.
    """
    text = message.message if message.HasField("message") else None
    code = error_code(message.code)
    if code != message.code:
        text = f"error {message.code}: {text}" if text else f"error {message.code}"
    return KafkaError(code, text)


def error_code(number: int) -> ErrorCode:
    """Returns the code with this number, or UNKNOWN_SERVER_ERROR if only a newer version knows the number."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
