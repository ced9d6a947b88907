"""Files on a volume, in a directory copy or in an object store, named by URI or local path."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import pyarrow as pa
from pyarrow import fs

from tidelog.pipeline.errors import PipelineError

PART_SUFFIX: Final = ".part"
_S3_SCHEMES: Final = ("s3", "s3a")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """`path` is a path that Storage accepts. `modified_ms` is 0 if it is unknown."""

    name: str
    path: str
    is_directory: bool
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True)
class Storage:
    """Opens paths such as a local path, file:///... or s3://bucket/.... It can be pickled and sent to tasks.

    `settings` go to pyarrow's file system of the scheme. For s3 these are, for example, endpoint_override,
    access_key, secret_key, region, scheme and anonymous ("true"). Raises FileNotFoundError for a file that
    does not exist, and PipelineError for one that cannot be reached.
    """

    settings: Mapping[str, str] = field(default_factory=dict)

    def listing(self, path: str) -> list[FileEntry]:
        """Returns the sorted content of a directory, without subdirectories' content. The result is empty if
        there is no such directory.
        """
        system, inner = self._resolve(path)
        try:
            found = system.get_file_info(fs.FileSelector(inner, allow_not_found=True))
        except (OSError, pa.ArrowException) as error:
            raise _unreachable(path, error) from error
        base = path.rstrip("/")
        return sorted(
            (
                FileEntry(
                    info.base_name,
                    f"{base}/{info.base_name}",
                    info.type == fs.FileType.Directory,
                    info.size or 0,
                    (info.mtime_ns or 0) // 1_000_000,
                )
                for info in found
                if info.type != fs.FileType.NotFound
            ),
            key=lambda entry: entry.name,
        )

    def exists(self, path: str) -> bool:
        system, inner = self._resolve(path)
        return bool(system.get_file_info(inner).type != fs.FileType.NotFound)

    def open(self, path: str) -> pa.NativeFile:
        """Opens a file for `read_at(bytes, position)` and `size()`. The caller closes it. A local file stays
        readable even if it is deleted.
        """
        system, inner = self._resolve(path)
        try:
            return system.open_input_file(inner)
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise _unreachable(path, error) from error

    def read(self, path: str) -> bytes:
        """Returns the content of a small file."""
        with self.open(path) as file:
            return bytes(file.read())

    def _resolve(self, path: str) -> tuple[fs.FileSystem, str]:
        return _resolve(path, tuple(sorted(self.settings.items())))


@dataclass(frozen=True)
class WritableStorage(Storage):
    """The target of an export. A written file appears completely or not at all."""

    def write(self, path: str, chunks: Iterable[bytes | pa.Buffer]) -> None:
        """Writes a file. Raises PipelineError."""
        system, inner = self._resolve(path)
        is_object = isinstance(system, fs.S3FileSystem)  # the file appears when it is complete
        place = inner if is_object else f"{inner}{PART_SUFFIX}"
        try:
            if not is_object:
                system.create_dir(inner.rpartition("/")[0], recursive=True)
            with system.open_output_stream(place) as file:
                for chunk in chunks:
                    file.write(chunk)
            if not is_object:
                if is_local(path):
                    with Path(place).open("rb") as written:
                        os.fsync(written.fileno())
                system.move(place, inner)
        except FileNotFoundError:
            raise  # the source has disappeared, as `chunks` reported
        except (OSError, pa.ArrowException) as error:
            raise PipelineError(f"{path} cannot be written: {error}") from error

    def delete(self, path: str) -> None:
        """Deletes a file if it exists."""
        system, inner = self._resolve(path)
        try:
            system.delete_file(inner)
        except FileNotFoundError:
            return
        except (OSError, pa.ArrowException) as error:
            raise PipelineError(f"{path} cannot be deleted: {error}") from error


def is_local(path: str) -> bool:
    return "://" not in path or path.startswith("file://")


@functools.lru_cache(maxsize=1024)
def _resolve(path: str, settings: tuple[tuple[str, str], ...]) -> tuple[fs.FileSystem, str]:
    if "://" not in path:
        return fs.LocalFileSystem(), path
    parts = urlsplit(path)
    if parts.scheme in _S3_SCHEMES:
        return _s3(settings), f"{parts.netloc}{parts.path}".rstrip("/")
    try:
        query = urlencode([*parse_qsl(parts.query), *settings])
        system, inner = fs.FileSystem.from_uri(parts._replace(query=query).geturl())
    except (OSError, ValueError, pa.ArrowException) as error:
        raise PipelineError(f"{path} cannot be opened: {error}; use a path, file:// or s3://") from error
    return system, inner


@functools.lru_cache(maxsize=16)
def _s3(settings: tuple[tuple[str, str], ...]) -> fs.FileSystem:
    arguments: dict[str, object] = dict(settings)
    if "anonymous" in arguments:
        arguments["anonymous"] = str(arguments["anonymous"]).lower() == "true"
    for name in ("connect_timeout", "request_timeout"):
        if name in arguments:
            arguments[name] = float(str(arguments[name]))
    try:
        return fs.S3FileSystem(**arguments)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise PipelineError(f"the object store's settings are wrong: {error}") from error


def _unreachable(path: str, error: Exception) -> PipelineError:
    return PipelineError(f"{path} cannot be read: {error}")
