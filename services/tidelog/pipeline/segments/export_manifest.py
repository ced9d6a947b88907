"""The part of a partition that an export holds, and the part that it lacks. The module does no I/O.

The manifest is in the partition's directory of the export. Kafka's tools and the segment source ignore it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.segments.layout import SegmentFile

MANIFEST_FILE: Final = "tidelog-export.json"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """`modified_ms` and the size are the source's. The CRC-32C covers the contents at both ends."""

    size_bytes: int
    modified_ms: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """`end_offset` is the exclusive end of the newest exported segment. `lost` holds the offsets [start, end)
    that were deleted before they could be exported, which the user accepted.
    """

    topic_id: str | None
    end_offset: int
    files: Mapping[str, ExportedFile] = field(default_factory=dict)
    lost: tuple[tuple[int, int], ...] = ()

    def with_file(self, name: str, file: ExportedFile) -> Manifest:
        return replace(self, files={**self.files, name: file})

    def without(self, names: Sequence[str]) -> Manifest:
        return replace(self, files={name: file for name, file in self.files.items() if name not in names})

    def to_json(self) -> str:
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str, path: str) -> Manifest:
        """Parses a manifest. Raises PipelineError."""
        try:
            read = json.loads(text)
            if read["format"] != _FORMAT:
                raise ValueError(f"format {read['format']}")
            return cls(
                read["topic_id"],
                int(read["end_offset"]),
                {name: ExportedFile(**file) for name, file in read["files"].items()},
                tuple((int(start), int(end)) for start, end in read["lost"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PipelineError(
                f"{path} cannot be read ({error}): delete it, and the export compares each file again"
            ) from error


def closed_segments(segments: Sequence[SegmentFile], high_watermark: int) -> list[SegmentFile]:
    """Returns the segments that only compaction can change and that are committed completely."""
    return [
        segment
        for segment in segments
        if segment.next_base_offset is not None and segment.next_base_offset <= high_watermark
    ]


def lost_before_export(
    manifest: Manifest | None, closed: Sequence[SegmentFile], log_start_offset: int
) -> tuple[int, int] | None:
    """Returns the offsets [start, end) between the exported segments and the source's oldest segment."""
    begin = max(log_start_offset, closed[0].base_offset) if closed else log_start_offset
    if manifest is None or manifest.end_offset >= begin:
        return None
    return manifest.end_offset, begin


def superseded(exported_bases: Sequence[int], closed: Sequence[SegmentFile]) -> list[int]:
    """Returns the exported segments that the source has since merged into others. Segments older than the
    source's are kept.
    """
    if not closed:
        return []
    present = {segment.base_offset for segment in closed}
    first, end = closed[0].base_offset, closed[-1].next_base_offset or 0
    return [base for base in exported_bases if first < base < end and base not in present]
