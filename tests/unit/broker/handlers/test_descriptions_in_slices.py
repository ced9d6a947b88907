"""Descriptions of all ACLs, users, tokens or partitions do not hold the event loop, however many exist."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from brokerlab.in_memory_broker import InMemoryBroker
from tidelog.kernel import slices
from tidelog.kernel.steps import Steps
from tidelog.metadata.entries import (
    AclEntry,
    DelegationTokenEntry,
    GroupConfigEntry,
    ScramCredentialEntry,
    SecurityEntry,
)
from tidelog.model.acl import (
    AclBinding,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
    user_principal,
)
from tidelog.rpc.broker_commands import SecurityUpdate
from tidelog.sasl.scram import MECHANISM_BY_NAME, credential_of_salted
from tidelog.settings.broker_settings import STANDARD_AUTHORIZER
from tidelog.wire.messages.describe_acls import DescribeAclsRequest
from tidelog.wire.messages.describe_delegation_token import DescribeDelegationTokenRequest
from tidelog.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from tidelog.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from tidelog.wire.messages.list_config_resources import ListConfigResourcesRequest

ENTRIES = 100
ROOT = user_principal("root")
SETTINGS = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": ROOT,
    "delegation.token.secret.key": "secret",
}
FOREVER_MS = 1 << 60
ANY = 1
GROUP = 32


def acl(name: str) -> AclEntry:
    binding = AclBinding(
        ResourceType.TOPIC,
        PatternType.LITERAL,
        name,
        ROOT,
        "*",
        AclOperation.READ,
        PermissionType.ALLOW,
    )
    return AclEntry(binding)


def user(name: str) -> ScramCredentialEntry:
    mechanism = MECHANISM_BY_NAME["SCRAM-SHA-256"]
    return ScramCredentialEntry(
        name, mechanism.name, credential_of_salted(mechanism, b"s" * 32, b"salt", 4096)
    )


def token(name: str) -> DelegationTokenEntry:
    return DelegationTokenEntry(name, ROOT, ROOT, (), 0, FOREVER_MS, FOREVER_MS)


def group(name: str) -> GroupConfigEntry:
    return GroupConfigEntry(name, {"consumer.session.timeout.ms": "50000"})


@pytest.mark.parametrize(
    ("entry", "request_message", "version", "answers"),
    [
        (acl, DescribeAclsRequest(ANY, None, ANY, None, None, ANY, ANY), 3, "resources"),
        (user, DescribeUserScramCredentialsRequest(None), 0, "results"),
        (token, DescribeDelegationTokenRequest(None), 3, "tokens"),
        (group, ListConfigResourcesRequest([GROUP]), 1, "config_resources"),
    ],
    ids=["acls", "users", "tokens", "groups"],
)
def test_a_description_of_all_is_made_in_slices(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    entry: Any,
    request_message: Any,
    version: int,
    answers: str,
) -> None:
    entries: list[SecurityEntry] = [entry(f"n{number}") for number in range(ENTRIES)]
    sliced = count_slices(monkeypatch)
    lab = InMemoryBroker(tmp_path, SETTINGS)
    try:
        lab.update_metadata(security=SecurityUpdate(1, tuple(entries)))
        sliced.clear()
        answer = lab.call(request_message, version, principal=ROOT)
    finally:
        lab.close()
    assert len(getattr(answer, answers)) == ENTRIES
    assert len(sliced) == 1


def test_the_sizes_of_all_partitions_are_told_in_slices(
    lab: InMemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.add_topic("t", 40)
    sliced = count_slices(monkeypatch)
    (directory,) = lab.call(DescribeLogDirsRequest(None), 4).results
    assert [part.partition_index for part in directory.topics[0].partitions] == list(range(40))
    assert len(sliced) == 1


def count_slices(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Returns the works that need more than one slice from now on."""
    sliced: list[object] = []
    finish = slices.finish

    def counted(steps: Steps[Any], seconds: slices.Seconds) -> Coroutine[object, None, Any]:
        sliced.append(steps)
        return finish(steps, seconds)

    monkeypatch.setattr(slices, "SLICE_MS", 0)
    monkeypatch.setattr(slices, "finish", counted)
    return sliced
