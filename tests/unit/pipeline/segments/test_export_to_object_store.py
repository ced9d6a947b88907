"""An export to an object store, read back with the parts of the segment source."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from brokerlab.logs import append, make_batch, open_log
from tidelog.broker.log.directory_files import write_offsets
from tidelog.broker.log.log_config import LogConfig
from tidelog.log_format.directory import HIGH_WATERMARK_CHECKPOINT
from tidelog.model.topics import TopicPartition
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.export import ExportSettings, export_segments
from tidelog.pipeline.segments.slices import SegmentPlanner, SliceReader
from tidelog.pipeline.segments.storage import Storage, WritableStorage
from tidelog.pipeline.segments.visible import visible_logs
from tidelog.records.columns.rows import RowBounds

PLACE = TopicPartition("t", 0)


def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "segments_object_store", Path(__file__).with_name("object_store.py")
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def settings() -> Iterator[dict[str, str]]:
    store = _module().ObjectStore()
    yield store.settings
    store.stop()


def test_an_export_is_read_from_the_object_store(settings: dict[str, str], tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=3000, index_interval_bytes=100, retention_ms=-1)
    log = open_log(tmp_path / "t-0", config)
    for _ in range(40):
        append(log, make_batch(log.log_end_offset, 2, value_bytes=50))
    log.flush()
    write_offsets(tmp_path / HIGH_WATERMARK_CHECKPOINT, {PLACE: log.log_end_offset})
    target = WritableStorage(settings)
    export = ExportSettings(Storage(), target)
    first = export_segments(export, [str(tmp_path)], None, "s3://bucket/logs")
    assert first.ends == {PLACE: log.segments[-1].base_offset}
    again = export_segments(export, [str(tmp_path)], None, "s3://bucket/logs")
    assert not again.copied_files and again.kept_files == first.copied_files

    storage = Storage(settings)
    [found] = visible_logs(storage, ["s3://bucket/logs"])
    assert (found.start_offset, found.end_offset) == (0, log.segments[-1].base_offset)
    reader = SliceReader(storage, ("offset",))
    offsets = [
        offset
        for part in SegmentPlanner(storage).slices(found, RowBounds())
        for batch in reader.read(part)
        for offset in batch.column(0).to_pylist()
    ]
    assert offsets == list(range(found.end_offset))
    log.close_files()


def test_a_missing_store_is_reported_in_one_sentence(tmp_path: Path) -> None:
    storage = Storage(
        {"endpoint_override": "127.0.0.1:9", "scheme": "http", "anonymous": "true", "region": "x"}
    )
    with pytest.raises(PipelineError, match=r"s3://bucket/logs cannot be read"):
        visible_logs(storage, ["s3://bucket/logs"])
    with pytest.raises(PipelineError, match="the object store's settings are wrong"):
        visible_logs(Storage({"colour": "red"}), ["s3://bucket/logs"])
