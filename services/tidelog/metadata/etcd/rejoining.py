"""How a member with an empty directory comes to its cluster: as a first start, or as one that lost its data.

etcd refuses to start the second as the first, and rightly: the others count on what it had promised. It has
to leave, with the id it had, and be taken in again with another.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import urllib.error
import urllib.request
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
PEER_TIMEOUT_S: Final = 3
MAX_ANSWER_BYTES: Final = 1024 * 1024

_log = structlog.get_logger(__name__)


class Step(Enum):
    """What a member without data does next; the first two are etcd's `initial-cluster-state`."""

    START_NEW = auto()
    START_EXISTING = auto()
    REMOVE = auto()
    ADD = auto()


class NextStep(NamedTuple):
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


def next_step(views: Sequence[Sequence[Member]], peer_url: str) -> NextStep:
    """By what the others that answer say. One of them may be behind: what any has seen did happen."""
    if not views:
        return NextStep(Step.START_NEW)
    mine = [member for view in views for member in view if peer_url in member.peer_urls]
    started_ids = {member.id for member in mine if member.has_client_urls}
    if any(not member.name and member.id not in started_ids for member in mine):
        # Removed and added: whoever still sees the former id is behind.
        return NextStep(Step.START_EXISTING)
    if started_ids:
        return NextStep(Step.REMOVE, min(started_ids))
    return NextStep(Step.START_NEW if mine else Step.ADD)


def has_data(data_dir: Path) -> bool:
    """Whether a member has run there: then etcd knows by itself where it belongs."""
    log = data_dir / "member" / "wal"
    return log.is_dir() and any(log.iterdir())


class Peers(NamedTuple):
    """Peer URLs of all members, the one that starts included; files of PEM for https."""

    own_url: str
    urls: tuple[str, ...]
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


async def cluster_state(options: EtcdOptions, peers: Peers, timeout_s: float) -> str:
    """`new` or `existing`, after what had to be done for it. For a member without data only.

    Raises StoreUnavailableError if the others could not agree to it in time: a majority of them is needed.
    """
    reason = "nobody was asked"
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                reason = await _try(options, peers)
                if reason in ("new", "existing"):
                    return reason
                await asyncio.sleep(PAUSE_MS / 1000)
    except TimeoutError as error:
        raise StoreUnavailableError(reason) from error


async def _try(options: EtcdOptions, peers: Peers) -> str:
    """`new`, `existing`, or why neither yet."""
    others = [url for url in peers.urls if url != peers.own_url]
    answers = await asyncio.gather(*(asyncio.to_thread(_members_seen_by, url, peers) for url in others))
    views = [answer for answer in answers if isinstance(answer, list)]
    doubts = [answer for answer in answers if isinstance(answer, str)]
    if doubts and not views:
        return doubts[0]
    decision = next_step(views, peers.own_url)
    if decision.step is Step.START_NEW:
        return "new"
    if decision.step is Step.START_EXISTING:
        return "existing"
    tried = await asyncio.gather(*(_connect(endpoint, options) for endpoint in options.parsed_endpoints()))
    connections = [connection for connection in tried if connection is not None]
    try:
        return await _change(connections, decision, peers.own_url, options)
    finally:
        for connection in connections:
            await connection.close()


def _members_seen_by(peer_url: str, peers: Peers) -> list[Member] | str | None:
    """Asked at the peers' port, as etcd itself does: there a member answers before it has a majority, and may
    be waiting for this one. None: surely nobody is there, as before everyone's first start. A sentence: who
    knows.
    """
    context = None
    try:
        if peer_url.startswith("https:"):
            context = ssl.create_default_context(cafile=peers.ca_file or None)
            context.load_cert_chain(peers.cert_file, peers.key_file)
        # No proxy: the others are next door.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(f"{peer_url}/members", timeout=PEER_TIMEOUT_S) as answer:
            return members_of(answer.read(MAX_ANSWER_BYTES))
    except (OSError, ValueError, http.client.HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, (ConnectionRefusedError, socket.gaierror)):
            return None
        return f"{peer_url}: {cause}"


def members_of(answer: bytes) -> list[Member]:
    """Of the JSON that a member answers. Raises ValueError."""
    listed = json.loads(answer)
    if not isinstance(listed, list) or not all(isinstance(member, dict) for member in listed):
        raise ValueError(f"no list of members: {listed!r}")
    return [
        Member(
            int(member.get("id", 0)),
            str(member.get("name", "")),
            frozenset(member.get("peerURLs") or ()),
            bool(member.get("clientURLs")),
        )
        for member in listed
    ]


async def _connect(endpoint: EtcdEndpoint, options: EtcdOptions) -> EtcdConnection | None:
    try:
        return await EtcdConnection.open(endpoint, options)
    except (OSError, TimeoutError):
        return None


async def _change(
    connections: list[EtcdConnection], decision: NextStep, peer_url: str, options: EtcdOptions
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
