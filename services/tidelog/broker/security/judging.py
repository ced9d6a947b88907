"""The parts of which the rows of the table of APIs consist, and the judgement about one request.

A requirement looks at a request and leaves one of three results: nothing is denied; the whole request is
refused; or some of its items are denied. Denied items are removed from the request before its handler sees
it, and they are added to the response with their error. What decides about many items returns its steps, one
for each item, because a connection remembers fewer decisions than a request may need. The messages of all
APIs go through the same code, which reads them by the names of their fields, so their types are `Any`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from tidelog.broker.requests.error_responses import (
    AUTHORIZATION_MESSAGES,
    error_response,
    item_error,
    items_of,
)
from tidelog.broker.requests.request import RequestContext
from tidelog.broker.security.authorizer import Authorizer
from tidelog.kernel.steps import Steps
from tidelog.model.acl import CLUSTER_NAME, AclOperation, ResourceType
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import ZERO_TOPIC_ID, DescribableTopics
from tidelog.wire.api_keys import ApiKey
from tidelog.wire.schema import Message

SUPPORTED_OPERATIONS: Final[dict[ResourceType, tuple[AclOperation, ...]]] = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}
"""Kafka's `AclEntry.supportedOperations` of the resource types in responses."""


def operation_bits(operations: Iterable[AclOperation]) -> int:
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS: Final = operation_bits(SUPPORTED_OPERATIONS[ResourceType.TOPIC])
GROUP_OPERATIONS: Final = operation_bits(SUPPORTED_OPERATIONS[ResourceType.GROUP])
CLUSTER_OPERATIONS: Final = operation_bits(SUPPORTED_OPERATIONS[ResourceType.CLUSTER])
NOT_ASKED: Final = -(2**31)
NO_AUTHORIZER: Final = "No Authorizer is configured on the broker"


READ, WRITE, CREATE, DELETE = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
)
ALTER, DESCRIBE, CLUSTER_ACTION = AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS
IDEMPOTENT_WRITE = AclOperation.IDEMPOTENT_WRITE
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID

DENIAL: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}
"""The error code of a denial by the type of the resource."""

_WITHOUT_MESSAGES: Final = frozenset(
    {ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
)
"""The denials that have no message, as in Kafka, except in FindCoordinator."""


class Judgement:
    """The judgement about one request: its allowed part, and the changes to its response."""

    def __init__(
        self, api_key: int, authorizer: Authorizer, context: RequestContext, message: Any, creates: bool
    ) -> None:
        self.api_key = api_key
        self.authorizer = authorizer
        self.context = context
        self.version = context.api_version
        self.metadata = authorizer.metadata
        self.creates_topics = creates
        """Whether `auto.create.topics.enable` is set."""
        self.message = message
        self.is_changed = False
        self.is_nothing_left = False
        """Whether every item that the request named is denied."""
        self.refusal: Message | None = None
        self.describable: Callable[[Judgement], Steps[DescribableTopics]] | None = None
        """Finds the topics that the client may describe, if the coordinator may ask for them."""
        self.edits: list[Callable[[Judgement, Any], Steps[None] | None]] = []
        """Changes to the response. They get the judgement as an argument: if they referred to it, it would be
        a cycle, which only the garbage collector frees. A change that decides about each item of the response
        returns its steps.
        """

    def may(
        self,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str = CLUSTER_NAME,
        *,
        is_asked_for: bool = True,
    ) -> bool:
        return self.authorizer.may(self.context, operation, resource_type, name, is_asked_for=is_asked_for)

    def may_topic(self, operation: AclOperation, name: str) -> bool:
        return self.may(operation, ResourceType.TOPIC, name)

    def topic_name(self, item: Any) -> str | None:
        """Returns the topic whose id an item has, or that it names. Returns None if no topic has the id.

        The id decides if it is set, because the handlers act on it.
        """
        topic_id = getattr(item, "topic_id", ZERO_TOPIC_ID)
        return (item.name or None) if topic_id == ZERO_TOPIC_ID else self.metadata.topic_names.get(topic_id)

    def operations(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Returns the bit set of the operations that the client may do (KIP-430)."""
        return operation_bits(
            operation
            for operation in SUPPORTED_OPERATIONS[resource_type]
            if self.may(operation, resource_type, name, is_asked_for=False)
        )

    def keep(self, **fields: Any) -> None:
        """Replaces fields of the request."""
        self.message = replace(self.message, **fields)
        self.is_changed = True

    def refuse(self, code: ErrorCode) -> None:
        """Refuses the whole request."""
        self.refusal = error_response(self.api_key, self.version, self.message, code, self._message_of(code))

    def denied(self, item: Any, code: ErrorCode) -> Any:
        """Returns the result of a denied item of the request."""
        return item_error(self.api_key, self.version, item, code, self._message_of(code))

    def _message_of(self, code: ErrorCode) -> str | None:
        if code in _WITHOUT_MESSAGES and self.api_key != ApiKey.FIND_COORDINATOR:
            return None
        return AUTHORIZATION_MESSAGES.get(code)

    def deny(self, left: list[Any], results: list[Any]) -> None:
        """Leaves some items in the request, and adds the results of the others to the response."""
        items = items_of(self.api_key, self.version)
        assert items is not None
        self.keep(**{items.asked: left})
        self.is_nothing_left = not left
        answered = items.answered
        self.edits.append(lambda _, response: getattr(response, answered).extend(results))

    def edit(self, response: Any) -> Steps[None]:
        for edit in self.edits:
            steps = edit(self, response)
            if steps is not None:
                yield from steps


class Whole(NamedTuple):
    """The request as a whole needs the operation on one resource. `name_of` returns the resource's name;
    None means that the request names none.
    """

    operation: AclOperation
    resource_type: ResourceType
    name_of: Callable[[Any], str | None] = lambda message: CLUSTER_NAME

    def apply(self, judgement: Judgement) -> None:
        name = self.name_of(judgement.message)
        if name is not None and not judgement.may(self.operation, self.resource_type, name):
            judgement.refuse(DENIAL[self.resource_type])


class Each(NamedTuple):
    """Each item of the request, as `error_responses.ITEMS` knows them, needs the operation on the resource
    that it names. A topic may have an id instead. `unless` is an operation on the cluster that allows all
    items.
    """

    operation: AclOperation
    resource_type: ResourceType
    unless: AclOperation | None = None

    def apply(self, judgement: Judgement) -> Steps[None]:
        fields = items_of(judgement.api_key, judgement.version)
        assert fields is not None
        items = getattr(judgement.message, fields.asked)
        if not items or (
            self.unless is not None and judgement.may(self.unless, ResourceType.CLUSTER, is_asked_for=False)
        ):
            return
        left: list[Any] = []
        denied: list[Any] = []
        has_id = self.resource_type is ResourceType.TOPIC and fields.copied[0] == "name"
        for item in items:
            name = judgement.topic_name(item) if has_id else fields.name_of(item)
            allowed = name is None or judgement.may(self.operation, self.resource_type, name)
            (left if allowed else denied).append(item)
            yield
        if denied:
            code = DENIAL[self.resource_type]
            judgement.deny(left, [judgement.denied(item, code) for item in denied])


class Shown(NamedTuple):
    """The response shows only the items that the client may do the operation on. `unless` is an operation on
    the cluster that shows all.
    """

    operation: AclOperation
    resource_type: ResourceType
    answers: str
    name: str
    unless: AclOperation | None = None

    def apply(self, judgement: Judgement) -> None:
        if self.unless is not None and judgement.may(self.unless, ResourceType.CLUSTER, is_asked_for=False):
            return
        judgement.edits.append(self._hide)

    def _hide(self, judgement: Judgement, response: Any) -> Steps[None]:
        shown: list[Any] = []
        for item in getattr(response, self.answers):
            if judgement.may(
                self.operation, self.resource_type, getattr(item, self.name), is_asked_for=False
            ):
                shown.append(item)
            yield
        setattr(response, self.answers, shown)


class InHandler(NamedTuple):
    """The handler itself asks about each resource, because its requests are frequent."""

    operation: AclOperation
    resource_type: ResourceType

    def apply(self, judgement: Judgement) -> None:
        """Does nothing here."""


class By(NamedTuple):
    """A rule of one API that has no other form. The operations that it uses are listed for the reader."""

    function: Callable[[Judgement], Steps[None] | None]
    operations: tuple[tuple[AclOperation, ResourceType], ...]

    def apply(self, judgement: Judgement) -> Steps[None] | None:
        """Applies the rule, or returns the steps that do so, if it may take long."""
        return self.function(judgement)


Requirement = Whole | Each | Shown | InHandler | By
