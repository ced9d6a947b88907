"""The broker's connection to the controller: forwarded requests, producer ids and controlled shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar, cast

from tidelog.broker.cluster.view import BrokerIdentity
from tidelog.broker.requests.request import RequestContext
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.rpc.controller_api import ControllerApi, ForwardedRequest, ProducerIdBlock
from tidelog.wire import codec

if TYPE_CHECKING:
    from tidelog.broker.security.charge import MutationQuotas
    from tidelog.wire.schema import Message

Answer = TypeVar("Answer")
_UNREACHABLE: Final = "The controller cannot be reached. It is unknown whether the change was made"


class ControllerConnection:
    """Calls the active controller in this broker's name. Its methods raise what `ControllerApi` raises:
    KafkaError, and ConnectionError if no controller can be reached.
    """

    def __init__(
        self, api: ControllerApi, identity: BrokerIdentity, mutations: MutationQuotas | None = None
    ) -> None:
        """Without `mutations`, clients may change any number of topics."""
        self.api = api
        self._mutations = mutations
        self._identity = identity
        self._next_producer_id = 0
        self._producer_ids_left = 0
        self._refilling = asyncio.Lock()

    @property
    def id_for_clients(self) -> int:
        """The id of the broker to which clients send admin requests. It is this broker, because every broker
        forwards them.
        """
        return self._identity.broker_id

    async def forward_or_refuse(
        self,
        api_key: int,
        request: Message,
        context: RequestContext,
        refuse: Callable[[ErrorCode, str | None], Answer],
    ) -> Answer:
        """Returns the controller's answer. If the controller rejects the whole request or cannot be reached,
        returns `refuse(code, message)`. Clients may retry after that code. Topics above the client's quota
        are not forwarded.
        """
        charge, split = context.charge, None
        if charge is not None and charge.has_mutation_quota and self._mutations is not None:
            split = self._mutations.split(api_key, request, charge, context.api_version)
            if split.allowed is None:
                return cast("Answer", codec.response_class(api_key)(**{split.field: split.results}))
            request = split.allowed
        forwarded = ForwardedRequest(
            context.api_version,
            request,
            principal=context.principal,
            client_id=context.client_id,
            host=context.host,
        )
        try:
            answer = cast("Answer", await self.api.handle(api_key, forwarded))
        except KafkaError as error:
            return refuse(error.code, error.message)
        except ConnectionError:
            return refuse(ErrorCode.NOT_CONTROLLER, _UNREACHABLE)
        if split is not None:
            split.complete(answer)
        return answer

    async def next_producer_id(self) -> int:
        """Returns a producer id that no other producer gets. A restart loses the rest of a block, as in
        Kafka.
        """
        async with self._refilling:
            if not self._producer_ids_left:
                block = await self.allocate_producer_ids()
                self._next_producer_id, self._producer_ids_left = block.first, block.count
            producer_id = self._next_producer_id
            self._next_producer_id += 1
            self._producer_ids_left -= 1
            return producer_id

    async def allocate_producer_ids(self) -> ProducerIdBlock:
        """Returns a block of producer ids that no other broker gets."""
        identity = self._identity
        return await self.api.allocate_producer_ids(identity.broker_id, identity.broker_epoch)

    async def controlled_shutdown(self) -> tuple[TopicPartition, ...]:
        """Asks the controller to move leadership away from this broker. Returns the partitions that stay."""
        identity = self._identity
        return await self.api.controlled_shutdown(identity.broker_id, identity.broker_epoch)
