"""The file `meta.properties`, which states the cluster and the node that a data directory belongs to.

The format is Kafka's (KRaft, version 1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidelog.broker.log.errors import CorruptFileError
from tidelog.broker.log.partition_directory import write_atomically

META_PROPERTIES_FILE: Final = "meta.properties"
_VERSION: Final = 1
_ESCAPED: Final = re.compile(r"\\(.)")
_TO_ESCAPE: Final = re.compile(r"([\\:=#!])")


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The contents of the file. `others` has the properties that are written back unchanged."""

    cluster_id: str
    node_id: int
    directory_id: str | None = None
    others: Mapping[str, str] = field(default_factory=dict)


def read_meta_properties(directory: Path) -> MetaProperties | None:
    """Returns None if the file does not exist. Raises CorruptFileError, OSError.

    It reads version 1, and version 0 of ZooKeeper mode, which has `broker.id` instead of `node.id`.
    """
    path = directory / META_PROPERTIES_FILE
    try:
        lines = path.read_text("latin-1").splitlines()
    except FileNotFoundError:
        return None
    properties: dict[str, str] = {}
    for line in lines:
        stripped = line.strip()
        if stripped and stripped[0] not in "#!":
            name, _, value = stripped.partition("=")
            properties[name.strip()] = _ESCAPED.sub(r"\1", value.strip())
    version = properties.pop("version", "0")
    if version not in ("0", "1"):
        raise CorruptFileError(f"{path}: unknown version {version}")
    node_id = properties.pop("node.id", properties.pop("broker.id", ""))
    cluster_id = properties.pop("cluster.id", "")
    if not node_id.isdecimal() or not cluster_id:
        raise CorruptFileError(f"{path}: node.id or cluster.id is missing or invalid")
    return MetaProperties(cluster_id, int(node_id), properties.pop("directory.id", None), properties)


def write_meta_properties(directory: Path, meta: MetaProperties) -> None:
    """Raises OSError."""
    properties = {"version": str(_VERSION), "cluster.id": meta.cluster_id, "node.id": str(meta.node_id)}
    if meta.directory_id is not None:
        properties["directory.id"] = meta.directory_id
    properties.update(meta.others)
    lines = [f"{name}={_TO_ESCAPE.sub(_with_backslash, value)}\n" for name, value in properties.items()]
    write_atomically(directory / META_PROPERTIES_FILE, "".join(lines).encode("latin-1"))


def _with_backslash(match: re.Match[str]) -> str:
    return f"\\{match[1]}"
