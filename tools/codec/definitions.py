"""Kafka's message definitions: where they are loaded from, and which of them are used."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

from own_fields import add_own_fields

KAFKA_VERSION = "4.4.0"
JARS = {
    "kafka-clients": "1ab07317eb6633241392449d329dbdc5d9251e6ffc4926860f42dd966e88bdf9",
    "kafka-group-coordinator": "3fc830ace54f6a13f9f536bc0564bf39a68797365a4c4b194bd7db4fb893b2bc",
    "kafka-metadata": "6c52de74ecd670332e1e1324f5d40311275ac49b22699b6722e5fb07dd266fcb",
    "kafka-share-coordinator": "6969a7961ca98d37a039bbe0af0fe761d6b0dd07ca9666802f47821167afbb6e",
    "kafka-transaction-coordinator": "1d5324d59776d6b7f324cfdc87647b1e88f9823332201c0324e7ae9f210d915d",
}
"""The artifacts of org.apache.kafka that contain definitions, with the SHA-256 of their jars."""
DEFINITIONS_FOLDERS = ("common/message/", "common/metadata/")
FETCH_TIMEOUT_S = 300

NOT_OURS = {
    "AbortedTxn",
    "KRaftVersionRecord",
    "LeaderChangeMessage",
    "SnapshotFooterRecord",
    "SnapshotHeaderRecord",
    "VotersRecord",
}
"""The entry of the transaction index, which is a file and no message, and the records of KRaft's own log,
which tidelog does not have.
"""

METADATA_RECORDS = {
    "AccessControlEntryRecord",
    "ClientQuotaRecord",
    "ConfigRecord",
    "FeatureLevelRecord",
    "PartitionChangeRecord",
    "PartitionRecord",
    "ProducerIdsRecord",
    "RemoveAccessControlEntryRecord",
    "RemoveTopicRecord",
    "RemoveUserScramCredentialRecord",
    "TopicRecord",
    "UserScramCredentialRecord",
}
"""The records of KRaft's metadata log that `tidelog adopt` reads."""


class DefinitionsUnavailableError(Exception):
    """The jars are not on this machine and cannot be fetched. The message states why."""


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tidelog" / f"kafka-definitions-{KAFKA_VERSION}"


def find_jars() -> list[Path]:
    """Returns the pinned jars: from the project's cache, else from this machine, else through Maven."""
    folder = cache_folder()
    found = []
    for artifact, sha256 in JARS.items():
        target = folder / f"{artifact}-{KAFKA_VERSION}.jar"
        if not _is_pinned(target, sha256):
            folder.mkdir(parents=True, exist_ok=True)
            if not _copy_local(artifact, sha256, target):
                _fetch(artifact, target)
            if not _is_pinned(target, sha256):
                target.unlink(missing_ok=True)
                raise SystemExit(f"{target.name}: its SHA-256 differs from the pinned one")
        found.append(target)
    return found


def _is_pinned(path: Path, sha256: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def _copy_local(artifact: str, sha256: str, target: Path) -> bool:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = f"{artifact}-{KAFKA_VERSION}.jar"
    peer = Path(os.environ.get("KAFKA_HOME") or cache / "kafka-peer")
    repository = Path.home() / ".m2" / "repository" / "org" / "apache" / "kafka"
    for candidate in (peer / f"libs-{KAFKA_VERSION}" / name, repository / artifact / KAFKA_VERSION / name):
        if _is_pinned(candidate, sha256):
            shutil.copyfile(candidate, target)
            return True
    return False


def _fetch(artifact: str, target: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise DefinitionsUnavailableError(f"{target.name} is not cached and Maven (mvn) is not installed")
    coordinates = f"org.apache.kafka:{artifact}:{KAFKA_VERSION}"
    command = [
        maven,
        "-B",
        "-q",
        "-ntp",
        "dependency:copy",
        f"-Dartifact={coordinates}",
        f"-DoutputDirectory={target.parent}",
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False, cwd=target.parent
        )
    except subprocess.TimeoutExpired:
        raise DefinitionsUnavailableError(
            f"fetching {coordinates} took longer than {FETCH_TIMEOUT_S} s"
        ) from None
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        raise DefinitionsUnavailableError(f"fetching {coordinates} failed: {lines[0][:200]}")


def load_definitions() -> list[dict[str, Any]]:
    """Returns all definitions with fields that a broker or its coordinators need, as parsed JSON.

    Requests and responses are those of the APIs that a broker's listener serves. Raises
    DefinitionsUnavailableError.
    """
    definitions: list[dict[str, Any]] = []
    for jar in find_jars():
        with zipfile.ZipFile(jar) as archive:
            names = [
                n
                for n in sorted(archive.namelist())
                if n.startswith(DEFINITIONS_FOLDERS) and n.endswith(".json")
            ]
            definitions.extend(_parse(archive.read(name).decode()) for name in names)
    served = {
        d["apiKey"] for d in definitions if d["type"] == "request" and "broker" in d.get("listeners", ())
    }
    return [add_own_fields(d) for d in definitions if _is_ours(d, served)]


def _is_ours(definition: dict[str, Any], served: set[int]) -> bool:
    if definition["type"] in ("request", "response"):
        return definition["apiKey"] in served
    if definition["type"] == "metadata":
        return definition["name"] in METADATA_RECORDS
    return definition["type"] != "header" and definition["name"] not in NOT_OURS


def _parse(text: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    return parsed
