"""The resources and operations of an entry, or of the roles of kafka-acls (--producer, --consumer).

The roles are those of Kafka's AclCommand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import click

from tidelog.model.acl import CLUSTER_NAME, AclOperation, PatternType, ResourceType


class Grant(NamedTuple):
    resource_type: ResourceType
    resource_name: str
    pattern: PatternType
    operation: AclOperation


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that the options of a command name."""

    topic: str | None = None
    group: str | None = None
    is_cluster: bool = False
    transactional_id: str | None = None

    def named(self) -> list[tuple[ResourceType, str]]:
        names = (
            (ResourceType.TOPIC, self.topic),
            (ResourceType.GROUP, self.group),
            (ResourceType.CLUSTER, CLUSTER_NAME if self.is_cluster else None),
            (ResourceType.TRANSACTIONAL_ID, self.transactional_id),
        )
        return [(kind, name) for kind, name in names if name is not None]

    def only(self) -> tuple[ResourceType, str] | None:
        """Returns the resource, None if there is none. Raises click.UsageError if there are several."""
        named = self.named()
        if len(named) > 1:
            raise click.UsageError("Give only one of --topic, --group, --cluster and --transactional-id.")
        return named[0] if named else None


_PRODUCER_OF_TOPIC: Final = (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE)
_PRODUCER_OF_TRANSACTIONS: Final = (AclOperation.WRITE, AclOperation.DESCRIBE)
_CONSUMER_OF_TOPIC: Final = (AclOperation.READ, AclOperation.DESCRIBE)


def grants_of_roles(
    resources: Resources, pattern: PatternType, *, produces: bool, consumes: bool, is_idempotent: bool
) -> list[Grant]:
    """Returns what producers and consumers need. Raises click.UsageError for other resources."""
    topic, group, transactional_id = resources.topic, resources.group, resources.transactional_id
    if topic is None:
        raise click.UsageError("--producer and --consumer need a --topic.")
    if consumes and group is None:
        raise click.UsageError("--consumer needs a --group.")
    if not consumes and group is not None:
        raise click.UsageError("--group needs --consumer.")
    if not produces and (transactional_id is not None or is_idempotent):
        raise click.UsageError("--transactional-id and --idempotent need --producer.")
    if resources.is_cluster:
        raise click.UsageError("Give no --cluster with --producer and --consumer; --idempotent implies it.")
    operations: list[AclOperation] = []
    found: list[Grant] = []
    if produces:
        operations += _PRODUCER_OF_TOPIC
    if consumes:
        operations += _CONSUMER_OF_TOPIC
    found += [Grant(ResourceType.TOPIC, topic, pattern, each) for each in dict.fromkeys(operations)]
    if transactional_id is not None:
        found += [
            Grant(ResourceType.TRANSACTIONAL_ID, transactional_id, pattern, each)
            for each in _PRODUCER_OF_TRANSACTIONS
        ]
    if group is not None:
        found.append(Grant(ResourceType.GROUP, group, pattern, AclOperation.READ))
    if is_idempotent:
        cluster = (ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)
        found.append(Grant(*cluster, AclOperation.IDEMPOTENT_WRITE))
    return found


def grants_of_operations(
    resources: Resources, pattern: PatternType, operations: Sequence[AclOperation]
) -> list[Grant]:
    """Returns the operations on the one resource. Raises click.UsageError if there is another number."""
    resource = resources.only()
    if resource is None:
        raise click.UsageError("Give one of --topic, --group, --cluster and --transactional-id.")
    if not operations:
        raise click.UsageError("Give --operation, --producer or --consumer.")
    return [Grant(*resource, pattern, each) for each in operations]
