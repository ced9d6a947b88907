"""Lets an etcd member with an empty directory join its cluster, at a first start or after the loss of its
data.

etcd does not let a member without its data start as a new member, because the others rely on what it had
acknowledged. Such a member must leave the cluster under its old id and be added under a new one.
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

from tidelog.metadata.etcd.connection import (
    EtcdConnection,
    EtcdEndpoint,
    EtcdOptions,
    answer_of,
    call_metadata,
)
from tidelog.metadata.etcd.generated import rpc_pb2 as pb
from tidelog.metadata.etcd.messages import CallFailedError
from tidelog.metadata.store import StoreUnavailableError

PAUSE_MS: Final = 500
PEER_TIMEOUT_S: Final = 3
MAX_ANSWER_BYTES: Final = 1024 * 1024

_log = structlog.get_logger(__name__)


class Step(Enum):
    """The next step of a member without data. The first two are the values of etcd's `initial-cluster-
    state`.
    """

    START_NEW = auto()
    START_EXISTING = auto()
    REMOVE = auto()
    ADD = auto()


class NextStep(NamedTuple):
    step: Step
    member_id: int = 0


class Member(NamedTuple):
    """A member as another member sees it.

    A member has client URLs after its first start. A member that was added to a running cluster has no name
    until then.
    """

    id: int
    name: str
    peer_urls: frozenset[str]
    has_client_urls: bool


def next_step(views: Sequence[Sequence[Member]], peer_url: str) -> NextStep:
    """Decides from the views of the members that answered. Members that are behind do not hide what others
    have seen.
    """
    if not views:
        return NextStep(Step.START_NEW)
    mine = [member for view in views for member in view if peer_url in member.peer_urls]
    started_ids = {member.id for member in mine if member.has_client_urls}
    if any(not member.name and member.id not in started_ids for member in mine):
        # The member was removed and added. A member that still sees the former id is behind.
        return NextStep(Step.START_EXISTING)
    if started_ids:
        return NextStep(Step.REMOVE, min(started_ids))
    return NextStep(Step.START_NEW if mine else Step.ADD)


def has_data(data_dir: Path) -> bool:
    """Returns true if a member has already run in the directory. Then etcd itself knows its cluster."""
    log = data_dir / "member" / "wal"
    return log.is_dir() and any(log.iterdir())


class Peers(NamedTuple):
    """The peer URLs of all members, including this one, and PEM files for https."""

    own_url: str
    urls: tuple[str, ...]
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


async def cluster_state(options: EtcdOptions, peers: Peers, timeout_s: float) -> str:
    """Returns `new` or `existing` for a member without data, after the necessary changes in the cluster.

    Raises StoreUnavailableError if the others did not agree in time. A majority of them must agree.
    """
    reason = "no member was asked"
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
    """Returns `new` or `existing`, or the reason why neither is certain yet."""
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
    """Returns the members that a member reports at its peer URL, as etcd itself requests them.

    At that URL a member answers before it has a majority, for which it may need this member. Returns None if
    certainly no member runs there, as before the first start of all members, or a reason if that is not
    known.
    """
    context = None
    try:
        if peer_url.startswith("https:"):
            context = ssl.create_default_context(cafile=peers.ca_file or None)
            context.load_cert_chain(peers.cert_file, peers.key_file)
        # The members are in the same network, so no proxy is used.
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
    """Parses the JSON that a member answers. Raises ValueError."""
    listed = json.loads(answer)
    if not isinstance(listed, list) or not all(isinstance(member, dict) for member in listed):
        raise ValueError(f"not a list of members: {listed!r}")
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
    """Asks the members in turn until one has made the change, and returns why the member can't start yet."""
    reason = "no member answers"
    for connection in connections:
        timeout_s = options.operation_timeout_ms / 1000
        try:
            token = await connection.authenticate(options) if options.username else None
            metadata = call_metadata(token)
            if decision.step is Step.REMOVE:
                request = pb.MemberRemoveRequest(ID=decision.member_id)
                await answer_of(
                    connection.cluster.MemberRemove(request, timeout=timeout_s, metadata=metadata)
                )
                _log.warning(
                    "removed this member from the cluster because its data is lost",
                    id=f"{decision.member_id:x}",
                )
                return "the member was removed and must be added again"
            await answer_of(
                connection.cluster.MemberAdd(
                    pb.MemberAddRequest(peerURLs=[peer_url]), timeout=timeout_s, metadata=metadata
                )
            )
            _log.warning("added this member to the cluster", peer_url=peer_url)
            return "the member was added, but the others do not list it yet"
        except CallFailedError as error:
            reason = f"{connection.endpoint.target}: {error.details}"
    return reason
