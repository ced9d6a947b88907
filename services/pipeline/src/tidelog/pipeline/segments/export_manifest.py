"""What an export holds of a partition, and what it lacks of the source. Pure.

The manifest lies in the partition's directory of the export. Kafka's tools and the segment source don't look
at it.
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
    """`modified_ms` and the size are the source's; the CRC-32C is of the contents, at both ends."""

    size_bytes: int
    modified_ms: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """`end_offset` is exclusive: where the newest segment exported ends. `lost`: [start, end) of offsets that
    were gone before they could be exported, and the user said go on.
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
        """Raises PipelineError."""
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
                f"{path} can't be read ({error}): delete it, and the export compares each file anew"
            ) from error


def closed_segments(segments: Sequence[SegmentFile], high_watermark: int) -> list[SegmentFile]:
    """Those that don't change any more, except by compaction, and are committed as a whole."""
    return [
        segment
        for segment in segments
        if segment.next_base_offset is not None and segment.next_base_offset <= high_watermark
    ]


def lost_before_export(
    manifest: Manifest | None, closed: Sequence[SegmentFile], log_start_offset: int
) -> tuple[int, int] | None:
    """Offsets [start, end) between what was exported and what the source still has."""
    begin = max(log_start_offset, closed[0].base_offset) if closed else log_start_offset
    if manifest is None or manifest.end_offset >= begin:
        return None
    return manifest.end_offset, begin


def superseded(exported_bases: Sequence[int], closed: Sequence[SegmentFile]) -> list[int]:
    """Segments of the export that the source has merged into others since; older ones than the source's are
    what the export is for.
    """
    if not closed:
        return []
    present = {segment.base_offset for segment in closed}
    first, end = closed[0].base_offset, closed[-1].next_base_offset or 0
    return [base for base in exported_bases if first < base < end and base not in present]
