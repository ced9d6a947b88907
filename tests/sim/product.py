"""Replaces the few places of tidelog that would open a socket or write the process's log."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import structlog

from sim import application, share_members, tcp
from sim.loop import PROCESS
from sim.requests import open_connection
from sim.rpc import SimCommandConnection
from tidelog.metadata.store import StoreUnavailableError

if TYPE_CHECKING:
    from sim.world import World


@contextlib.contextmanager
def installed(world: World) -> Iterator[None]:
    """Connects tidelog's services by the simulated network, and turns their log lines into events."""

    def note(_logger: Any, level: str, event: MutableMapping[str, Any]) -> Any:
        if not world.is_over:
            _note(world, level, event)
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[note], cache_logger_on_first_use=False)
    try:
        with (
            patch("tidelog.rpc.grpc_broker_commands._Connection", SimCommandConnection),
            patch("tidelog.broker.replication.leader_connector.open_connection", open_connection),
            patch("tidelog.broker.handlers.fetch.is_resident", lambda *_: False),
            patch("tidelog.broker.hosting.life.read_boot_id", _boot_id),
            patch("tidelog.group_coordinator.server.new_member_uuid", world.new_name),
            tcp.installed(),
            application.installed(world),
            share_members.installed(world.invariants),
        ):
            yield
    finally:
        structlog.configure(**before)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Discards the log lines of a simulation that is being taken apart."""

    def drop(*_: Any) -> Any:
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[drop], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)


def _boot_id() -> str:
    process = PROCESS.get()
    assert process is not None
    boot_id: str = process.service.disk.boot_id
    return boot_id


def _note(world: World, level: str, event: MutableMapping[str, Any]) -> None:
    process = PROCESS.get()
    text = event.get("event", "")
    error = event.get("exc_info")
    if error is True:
        error = sys.exc_info()[1]
    details = " ".join(
        f"{name}={value}" for name, value in sorted(event.items()) if name not in ("event", "exc_info")
    )
    world.trace.add(world.loop.now, "logged", process, level, text, details, repr(error) if error else "")
    if error and not isinstance(error, StoreUnavailableError):
        world.invariants.fail("nothing crashes", f"{process} logged {text!r}: {error!r} {details}")
