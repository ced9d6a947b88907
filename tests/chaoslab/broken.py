"""Faults that are planted in real processes, to show that the checker finds them in a load's history.

Python imports `sitecustomize` of the first directory of PYTHONPATH at its start, so each process of the
cluster gets the fault.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from brokerlab.broker_process import BUILD_VARIABLE

OPEN_TRANSACTIONS_READ: Final = """\
from tidelog.broker.partition.core import PartitionCore
PartitionCore.read_limit = lambda core, isolation_level: core.high_watermark
"""
ABORTED_TRANSACTIONS_UNSAID: Final = """\
from tidelog.broker.hosting.replica import Replica
Replica.aborted_within = lambda replica, fetch_offset, file_range, most, **_: ([], file_range)
"""
REPEATS_STORED: Final = """\
from tidelog.broker.partition.producer_state import ProducerState
ProducerState.check = lambda *_: None
"""
BROKEN: Final = {
    "open-transactions-read": OPEN_TRANSACTIONS_READ,
    "aborted-transactions-unsaid": ABORTED_TRANSACTIONS_UNSAID,
    "repeats-stored": REPEATS_STORED,
}
"""Maps the name of a fault to the code that plants it."""


@contextlib.contextmanager
def planted(name: str | None, directory: Path) -> Iterator[None]:
    """Plants the fault in all processes of Python that start during the block. None plants nothing."""
    if name is None:
        yield
        return
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "sitecustomize.py").write_text(BROKEN[name])
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", BUILD_VARIABLE)}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(directory), before["PYTHONPATH"]]))
    os.environ.pop(BUILD_VARIABLE, None)  # nothing can be planted in compiled classes
    try:
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value
