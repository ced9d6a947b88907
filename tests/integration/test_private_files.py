"""Other users of the machine cannot read the files of a broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from brokerlab.broker_process import BrokerProcess
from brokerlab.clients import create_topic, produce_values

pytestmark = pytest.mark.integration
FOR_OTHERS = 0o077


def test_files_and_directories_are_for_their_owner_only(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    data_dir = tmp_path / "existing"
    data_dir.mkdir(mode=0o755)
    broker = start_broker(data_dir=data_dir)
    create_topic(broker.bootstrap, "t")
    produce_values(broker.bootstrap, "t", [b"x"] * 10)
    broker.stop()
    found = [data_dir, *data_dir.rglob("*")]
    assert len(found) > 10
    assert not {path.name: oct(path.stat().st_mode) for path in found if path.stat().st_mode & FOR_OTHERS}
