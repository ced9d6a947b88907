"""A start reports suspect and lost logs until a controller has acted on them, over any number of runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from tidelog.broker.cluster.controller_connection import ControllerConnection
from tidelog.broker.cluster.view import BrokerIdentity, CurrentSettings
from tidelog.broker.hosting import life as life_module
from tidelog.broker.hosting.life import BrokerLife
from tidelog.broker.log import log_directory as log_directory_module
from tidelog.broker.log.log_directory import LogDirectory
from tidelog.metadata.entries import BrokerEntry, decode_entry
from tidelog.metadata.file_store import FileMetadataStore
from tidelog.rpc.controller_api import ControllerApi
from tidelog.settings.broker_settings import BrokerSettings


class Machine:
    """A data directory. `run` is one run of the broker; `registrations` has the registration of each run."""

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
        )
        entry = BrokerEntry(1, (), is_log_suspect=directory.is_suspect)
        await life.begin(entry, on_failed=lambda error: None)
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
def test_suspicion_lasts_until_a_controller_acts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    machine = Machine(tmp_path, monkeypatch)
    machine.run(is_heard=True, ends="cleanly")
    machine.run(is_heard=True, ends="killed")
    machine.boot_id = "boot-2"
    machine.run(is_heard=False, ends=ends)
    machine.run(is_heard=True, ends="killed")
    machine.run(is_heard=True, ends="killed")
    # new; after a clean stop; suspect; still suspect, because no controller acted; not suspect any more
    assert machine.registrations == [True, False, True, True, False]
