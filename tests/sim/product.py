"""Where tidelog's own code meets the simulation: the few places that would open a socket, and the log."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import structlog
from tidelog.metadata.store import StoreUnavailableError

from sim.loop import PROCESS
from sim.requests import open_channel
from sim.rpc import SimCommandConnection

if TYPE_CHECKING:
    from sim.world import World


@contextlib.contextmanager
def installed(world: World) -> Iterator[None]:
    """tidelog's services talk through the simulated network, and their log lines become events."""

    def note(_logger: Any, level: str, event: MutableMapping[str, Any]) -> Any:
        if not world.is_over:
            _note(world, level, event)
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[note], cache_logger_on_first_use=False)
    try:
        with (
            patch("tidelog.rpc.grpc_broker_channels._Connection", SimCommandConnection),
            patch("tidelog.broker.replication.leader_fetcher.open_channel", open_channel),
            patch("tidelog.broker.fetch_answer.is_resident", lambda *_: False),
            patch("tidelog.broker.life.read_boot_id", _boot_id),
            patch("tidelog.group_coordinator.server.new_member_uuid", world.new_name),
        ):
            yield
    finally:
        structlog.configure(**before)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """What is logged while a simulation is taken apart concerns nobody."""

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
