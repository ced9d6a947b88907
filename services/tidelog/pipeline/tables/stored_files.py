"""Small files beside tables and in checkpoints, on a volume or in an object store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow.fs


def absolute(path: str) -> str:
    """Returns an absolute path, because Spark and this process resolve relative paths differently."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    return path if "://" in path else str(Path(path).absolute())


class StoredDirectory:
    """A directory, named by its path or address. File names are relative to it."""

    def __init__(self, path: str) -> None:
        from pyarrow import ArrowException
        from pyarrow.fs import FileSystem

        self.path = absolute(path)
        self.is_local = "://" not in self.path
        try:
            self._files, self._root = FileSystem.from_uri(self.path)
        except (ArrowException, OSError, ValueError) as error:
            raise PipelineError(f"{path} cannot be opened: {error}") from error

    def read(self, name: str) -> str | None:
        """Returns the file's bytes, or None if there is no such file."""
        try:
            with self._files.open_input_stream(self._path_of(name)) as stream:
                content: bytes = stream.read()
        except FileNotFoundError:
            return None
        return content.decode()

    def write(self, name: str, text: str) -> None:
        """Writes the whole file or nothing."""
        target = self._path_of(name)
        self._files.create_dir(target.rpartition("/")[0], recursive=True)
        if not self.is_local:  # in an object store, a file becomes visible when it is complete
            with self._files.open_output_stream(target) as stream:
                stream.write(text.encode())
            return
        temporary = Path(f"{target}.tmp")
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)

    def names(self, directory: str = "") -> list[str]:
        """Returns the sorted names of the files and directories in one directory, or an empty list without
        it.
        """
        return sorted(info.base_name for info in self._infos(directory, recursive=False))

    def files(self, directory: str = "") -> dict[str, int]:
        """Returns a map of name to bytes for all files below the directory."""
        from pyarrow.fs import FileType

        prefix = len(self._root.rstrip("/")) + 1
        return {
            info.path[prefix:]: info.size
            for info in self._infos(directory, recursive=True)
            if info.type == FileType.File
        }

    def modified(self, directory: str = "") -> dict[str, float]:
        """Returns a map of name to modification time, in seconds since 1970, for all files below the
        directory.
        """
        from pyarrow.fs import FileType

        prefix = len(self._root.rstrip("/")) + 1
        return {
            info.path[prefix:]: info.mtime.timestamp()
            for info in self._infos(directory, recursive=True)
            if info.type == FileType.File
        }

    def move(self, name: str, target: str) -> None:
        self._files.create_dir(self._path_of(target).rpartition("/")[0], recursive=True)
        self._files.move(self._path_of(name), self._path_of(target))

    def delete(self, name: str) -> None:
        """Deletes a file if it exists."""
        try:
            self._files.delete_file(self._path_of(name))
        except FileNotFoundError:
            return

    def delete_directory(self, name: str) -> None:
        """Deletes a directory with its contents if it exists."""
        try:
            self._files.delete_dir(self._path_of(name))
        except FileNotFoundError:
            return

    def _path_of(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    def _infos(self, directory: str, *, recursive: bool) -> list[pyarrow.fs.FileInfo]:
        from pyarrow.fs import FileSelector

        selector = FileSelector(self._path_of(directory), allow_not_found=True, recursive=recursive)
        found: list[pyarrow.fs.FileInfo] = self._files.get_file_info(selector)
        return found
