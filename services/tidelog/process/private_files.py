"""Files that only the user of this process can read: records, keys and the metadata store."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

PRIVATE_UMASK: Final = 0o077
PRIVATE_DIRECTORY: Final = 0o700


def keep_files_private(data_dir: Path | None = None) -> None:
    """Makes this process and its children create files with mode 0600 and directories with mode 0700, and
    closes an existing `data_dir` to other users.
    """
    os.umask(PRIVATE_UMASK)
    if data_dir is not None:
        # A volume may belong to another user, such as Kubernetes' root; its group then decides.
        with suppress(FileNotFoundError, PermissionError):
            data_dir.chmod(PRIVATE_DIRECTORY)
