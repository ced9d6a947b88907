"""ShareAcknowledge v1 and v2: a member of a share group says what became of its records (KIP-932).

The response leaves when the share coordinator has stored the acknowledgements. Source: Kafka's
`SharePartitionManager.acknowledge`.
"""

from __future__ import annotations

from tidelog.broker.handlers.share_requests import (
    MOVED,
    UNKNOWN_LEADER,
    Acknowledgements,
    ShareRequestParts,
    session_key,
)
from tidelog.broker.requests.request import PARKED, Answer, Reply, RequestContext
from tidelog.broker.share.share_sessions import SessionKey, ShareSession, is_final, is_initial
from tidelog.kernel.slices import run_in_slices
from tidelog.kernel.steps import all_at_once
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.wire.messages.share_acknowledge import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)


class ShareAcknowledgeHandler:
    """Answers ShareAcknowledge."""

    def __init__(self, parts: ShareRequestParts) -> None:
        self._parts = parts

    def handle(self, request: ShareAcknowledgeRequest, context: RequestContext) -> Answer:
        parts, sessions = self._parts, self._parts.partitions.sessions
        try:
            key = session_key(request.group_id, request.member_id)
            if is_initial(request.share_session_epoch):
                raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
            closing = sessions.find(key) if is_final(request.share_session_epoch) else None
            if closing is None:
                sessions.continue_(key, request.share_session_epoch)
        except KafkaError as error:
            return ShareAcknowledgeResponse(error_code=error.code, error_message=error.client_message)
        may_renew = request.is_renew_ack and parts.group_settings(key.group_id).share_renew_acknowledge_enable
        acknowledgements = Acknowledgements(parts, context, key, may_renew=may_renew)
        for topic in request.topics:
            for partition in topic.partitions:
                acknowledgements.add(
                    topic.topic_id, partition.partition_index, partition.acknowledgement_batches
                )
        if acknowledgements.is_long:
            return self._in_slices(acknowledgements, key, context, closing)
        all_at_once(acknowledgements.begin())
        if closing is not None:
            parts.partitions.end_session(closing)
        if acknowledgements.is_done():
            return self._response(acknowledgements, key, context)
        unanswered = context.park()
        self._wait(acknowledgements, key, context)
        return unanswered

    async def _in_slices(
        self,
        acknowledgements: Acknowledgements,
        key: SessionKey,
        context: RequestContext,
        closing: ShareSession | None,
    ) -> Reply:
        await run_in_slices(acknowledgements.begin())
        if closing is not None:
            self._parts.partitions.end_session(closing)
        if acknowledgements.is_done():
            return self._response(acknowledgements, key, context)
        self._wait(acknowledgements, key, context)
        return PARKED

    def _wait(self, acknowledgements: Acknowledgements, key: SessionKey, context: RequestContext) -> None:
        acknowledgements.wait(lambda: context.reply(self._response(acknowledgements, key, context)))

    def _response(
        self, acknowledgements: Acknowledgements, key: SessionKey, context: RequestContext
    ) -> ShareAcknowledgeResponse:
        parts = self._parts
        lock_ms = parts.group_settings(key.group_id).share_record_lock_duration_ms
        response = ShareAcknowledgeResponse(acquisition_lock_timeout_ms=lock_ms)
        leaders: set[int] = set()
        for (_, topic_id, index), result in acknowledgements.results:
            error = result.error or ErrorCode.NONE
            leader = parts.current_leader(topic_id, index) if error in MOVED else UNKNOWN_LEADER
            leaders.add(leader[0])
            data = PartitionData(
                index, error, result.message if error else None, current_leader=LeaderIdAndEpoch(*leader)
            )
            if not response.responses or response.responses[-1].topic_id != topic_id:
                response.responses.append(ShareAcknowledgeTopicResponse(topic_id, []))
            response.responses[-1].partitions.append(data)
        response.node_endpoints = [
            NodeEndpoint(*endpoint) for endpoint in parts.endpoints(leaders, context.listener_name)
        ]
        return response
