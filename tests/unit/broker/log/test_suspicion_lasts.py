"""What a start finds lost stays said until the controller has acted on it, however many lives that takes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from tidelog.broker import life as life_module
from tidelog.broker.controller_connection import ControllerConnection
from tidelog.broker.current_settings import CurrentSettings
from tidelog.broker.identity import BrokerIdentity
from tidelog.broker.life import BrokerLife
from tidelog.broker.log import log_directory as log_directory_module
from tidelog.broker.log.log_directory import LogDirectory
from tidelog.metadata.entries import BrokerEntry, decode_entry
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.rpc.controller_api import ControllerApi
from tidelog.settings.broker_settings import BrokerSettings


class Machine:
    """`run` is one life of the broker on it; how it was registered is in `registrations`."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = path
        self.boot_id = "boot-1"
        self.registrations: list[bool] = []
        for module in (life_module, log_directory_module):
            monkeypatch.setattr(module, "read_boot_id", lambda: self.boot_id)

    def run(self, *, is_heard: bool, ends: str) -> None:
        asyncio.run(self._run(is_heard=is_heard, ends=ends))

    async def _run(self, *, is_heard: bool, ends: str) -> None:
        store = FileMetadataStore.open(self._path / "metadata", monotonic_ms=lambda: 0)
        directory = LogDirectory.open(self._path / "data", cluster_id="c", node_id=1)
        identity = BrokerIdentity(1)
        controller = ControllerConnection(cast(ControllerApi, None), identity)
        life = BrokerLife(
            identity,
            CurrentSettings(BrokerSettings.parse({})),
            directory,
            controller,
            store,
            remembers=True,
            on_failed=lambda error: None,
        )
        entry = BrokerEntry(1, (), is_log_suspect=directory.is_suspect)
        await life.begin(entry)
        item = await store.get(entry.key)
        assert item is not None
        stored = decode_entry(item.key, item.value)
        assert isinstance(stored, BrokerEntry)
        self.registrations.append(stored.is_log_suspect)
        if is_heard:
            await life.logs_are_known()
        if ends == "cleanly":
            directory.close(broker_epoch=identity.broker_epoch)
        else:
            directory.abandon()
        await life.end()
        await store.close()


@pytest.mark.parametrize("ends", ["cleanly", "killed"])
def test_until_the_controller_has_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    machine = Machine(tmp_path, monkeypatch)
    machine.run(is_heard=True, ends="cleanly")
    machine.run(is_heard=True, ends="killed")
    machine.boot_id = "boot-2"
    machine.run(is_heard=False, ends=ends)
    machine.run(is_heard=True, ends="killed")
    machine.run(is_heard=True, ends="killed")
    # New, sound, suspect, still suspect as nobody heard, and then no longer.
    assert machine.registrations == [True, False, True, True, False]
