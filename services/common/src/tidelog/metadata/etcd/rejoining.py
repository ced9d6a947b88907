"""How a member with an empty directory comes to its cluster: as a first start, or as one that lost its data.

etcd refuses to start the second as the first, and rightly: the others count on what it had promised. It has
to leave, with the id it had, and be taken in again with another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Final, NamedTuple

import structlog
from tidelog.metadata.etcd.connection import EtcdConnection, answer_of
from tidelog.metadata.etcd.faults import CallFailedError
from tidelog.metadata.etcd.generated import rpc_pb2 as pb
from tidelog.metadata.etcd.options import EtcdEndpoint, EtcdOptions
from tidelog.metadata.store import StoreUnavailableError

PAUSE_MS: Final = 500
# What gRPC says when a host answers that nobody listens, or when there is no host of that name.
_NOBODY_TEXTS: Final = (
    "Connection refused",
    "Domain name not found",
    "DNS server returned answer with no data",
)

_log = structlog.get_logger(__name__)


class Step(Enum):
    """What a member without data does next; the first two are etcd's `initial-cluster-state`."""

    START_NEW = auto()
    START_EXISTING = auto()
    REMOVE = auto()
    ADD = auto()


class Decision(NamedTuple):
    step: Step
    member_id: int = 0


class Member(NamedTuple):
    """As another member sees it. It has client URLs from its first start on; only one that was added to a
    running cluster is without a name until then.
    """

    id: int
    name: str
    peer_urls: frozenset[str]
    has_client_urls: bool


def next_step(views: Sequence[Sequence[Member]], peer_url: str) -> Decision:
    """By what the others that answer say. One of them may be behind: what any has seen did happen."""
    if not views:
        return Decision(Step.START_NEW)
    mine = [member for view in views for member in view if peer_url in member.peer_urls]
    started_ids = {member.id for member in mine if member.has_client_urls}
    if any(not member.name and member.id not in started_ids for member in mine):
        # Removed and added: whoever still sees the former id is behind.
        return Decision(Step.START_EXISTING)
    if started_ids:
        return Decision(Step.REMOVE, min(started_ids))
    return Decision(Step.START_NEW if mine else Step.ADD)


def has_data(data_dir: Path) -> bool:
    """Whether a member has run there: then etcd knows by itself where it belongs."""
    log = data_dir / "member" / "wal"
    return log.is_dir() and any(log.iterdir())


async def cluster_state(options: EtcdOptions, peer_url: str, timeout_s: float) -> str:
    """`new` or `existing`, after what had to be done for it. For a member without data only.

    Raises StoreUnavailableError if the others could not agree to it in time: a majority of them is needed.
    """
    reason = "nobody was asked"
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                reason = await _try(options, peer_url)
                if reason in ("new", "existing"):
                    return reason
                await asyncio.sleep(PAUSE_MS / 1000)
    except TimeoutError as error:
        raise StoreUnavailableError(reason) from error


async def _try(options: EtcdOptions, peer_url: str) -> str:
    """`new`, `existing`, or why neither yet."""
    tried = await asyncio.gather(*(_connect(endpoint, options) for endpoint in options.parsed_endpoints()))
    connections = [found for found in tried if isinstance(found, EtcdConnection)]
    doubts = [found for found in tried if isinstance(found, str)]
    try:
        views = [await _view(connection, options) for connection in connections]
        seen = [view for view in views if view is not None]
        if not seen and len(views) + len(doubts) > 0:
            return doubts[0] if doubts else "a member is there, but says nothing of the others"
        decision = next_step(seen, peer_url)
        if decision.step is Step.START_NEW:
            return "new"
        if decision.step is Step.START_EXISTING:
            return "existing"
        return await _change(connections, decision, peer_url, options)
    finally:
        for connection in connections:
            await connection.close()


async def _connect(endpoint: EtcdEndpoint, options: EtcdOptions) -> EtcdConnection | str | None:
    """None: surely nobody is there, as before everyone's first start. A sentence: who knows."""
    try:
        return await EtcdConnection.open(endpoint, options)
    except (OSError, TimeoutError) as error:
        if any(text in str(error) for text in _NOBODY_TEXTS):
            return None
        return f"{endpoint.target}: {error or 'no connection in time'}"


async def _view(connection: EtcdConnection, options: EtcdOptions) -> list[Member] | None:
    try:
        answer = await answer_of(
            # Not through the leader: while a cluster comes up there may be none, and they wait for this one.
            connection.cluster.MemberList(
                pb.MemberListRequest(linearizable=False), timeout=options.attempt_timeout_ms / 1000
            )
        )
    except CallFailedError:
        return None
    return [
        Member(member.ID, member.name, frozenset(member.peerURLs), bool(member.clientURLs))
        for member in answer.members
    ]


async def _change(
    connections: list[EtcdConnection], decision: Decision, peer_url: str, options: EtcdOptions
) -> str:
    """Asks one after the other until one has done it; the next look at them says what comes then."""
    reason = "no member answers"
    for connection in connections:
        try:
            if decision.step is Step.REMOVE:
                request = pb.MemberRemoveRequest(ID=decision.member_id)
                await answer_of(
                    connection.cluster.MemberRemove(request, timeout=options.operation_timeout_ms / 1000)
                )
                _log.warning("removed as a member, for its data is lost", id=f"{decision.member_id:x}")
                return "removed, not added yet"
            await answer_of(
                connection.cluster.MemberAdd(
                    pb.MemberAddRequest(peerURLs=[peer_url]), timeout=options.operation_timeout_ms / 1000
                )
            )
            _log.warning("added as a member", peer_url=peer_url)
            return "added, not seen yet"
        except CallFailedError as error:
            reason = f"{connection.endpoint.target}: {error.details}"
    return reason
