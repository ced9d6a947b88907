"""Converts brokers, partitions and refusals to the messages of protos/tidelog/rpc/v1/cluster.proto and
back.
"""

from __future__ import annotations

from tidelog.model.brokers import BrokerRegistration, Endpoint
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.generated import cluster_pb2 as pb
from tidelog.rpc.peer_values import not_negative, peer_partition, port


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
