"""The snapshot of what a broker knows about clients beside their connections: ACLs, client quotas,
settings of groups, credentials, and subscriptions to their metrics.

The controller writes each item as one entry of the metadata store (`tidelog.metadata.entries.SecurityEntry`)
and sends the changed entries to all brokers with UpdateMetadata, as it does with dynamic settings. A broker
that registers receives all entries before it accepts connections. `MetadataView.security` is the current
snapshot. A change is computed in steps and replaces it by another object, so a result that was computed from
a snapshot stays valid as long as `view.security is snapshot`.

To add a part, such as the credentials of users:

1. In `metadata/entries.py`, add its entry class, its prefix in SECURITY_PREFIXES, its case in
   `_decode_entry`, and the class to `SecurityEntry`.
2. In `controller/core/state.py`, keep the entries in a dict, with a row in `_security`. Decisions read that
   dict and return `Write` and `Erase`.
3. Here, add the attribute, and its case in `updated`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, TypeVar

from tidelog.broker.security.acl_index import AclIndex
from tidelog.metadata.entries import (
    AclEntry,
    ClientMetricsEntry,
    ClientQuotaEntry,
    DelegationTokenEntry,
    GroupConfigEntry,
    ScramCredentialEntry,
    SecurityEntry,
)

if TYPE_CHECKING:
    from tidelog.kernel.steps import Steps
    from tidelog.rpc.broker_commands import SecurityUpdate

_EntryT = TypeVar("_EntryT", bound=SecurityEntry)
_Written = dict[type[object], dict[str, SecurityEntry]]
"""The entries to write by their class and key."""


@dataclass(frozen=True, slots=True, eq=False)
class SecuritySnapshot:
    """The ACLs, client quotas, settings of groups and credentials at one revision of the store, by the keys
    of their entries.

    `revision` is for display. A new controller may state a lower one, because it does not know deletions
    that an earlier controller made.
    """

    revision: int = 0
    acls: Mapping[str, AclEntry] = field(default_factory=dict)
    quotas: Mapping[str, ClientQuotaEntry] = field(default_factory=dict)
    group_configs: Mapping[str, GroupConfigEntry] = field(default_factory=dict)
    scram_credentials: Mapping[str, ScramCredentialEntry] = field(default_factory=dict, repr=False)
    delegation_tokens: Mapping[str, DelegationTokenEntry] = field(default_factory=dict)
    client_metrics: Mapping[str, ClientMetricsEntry] = field(default_factory=dict)
    rules: AclIndex = field(default_factory=AclIndex, repr=False)
    """The ACLs in the form in which the authorizer looks them up."""

    def replaced(self, update: SecurityUpdate) -> Steps[SecuritySnapshot]:
        """Returns the snapshot of a full update. It is this object if nothing has changed, as after a change
        of the controller.
        """
        parts: list[Mapping[str, SecurityEntry]] = []
        for part in fields(self):  # every part, so that none is forgotten and keeps what was removed
            entries = getattr(self, part.name)
            if isinstance(entries, Mapping):
                parts.append(entries)
        wanted: set[str] = set()
        changed: _Written = {}
        for entry in update.entries:
            yield
            key = entry.key
            wanted.add(key)
            if not any(known.get(key) == entry for known in parts):
                changed.setdefault(type(entry), {})[key] = entry
        removed: list[str] = []
        for known in parts:
            for key in known:
                yield
                if key not in wanted:
                    removed.append(key)
        if not changed and not removed:
            return self
        return (yield from self._changed(update.revision, changed, removed))

    def updated(self, update: SecurityUpdate) -> Steps[SecuritySnapshot]:
        """Returns the snapshot after an update. Parts without changes stay the same objects."""
        written: _Written = {}
        for entry in update.entries:
            yield
            written.setdefault(type(entry), {})[entry.key] = entry
        return (yield from self._changed(update.revision, written, update.removed))

    def _changed(self, revision: int, written: _Written, removed: Collection[str]) -> Steps[SecuritySnapshot]:
        acls, rules = (yield from _updated(self.acls, AclEntry, written, removed)), self.rules
        if acls is not self.acls:
            rules = yield from rules.changed(
                (self.acls[key].binding for key in removed if key in self.acls),
                (
                    entry.binding
                    for entry in written.get(AclEntry, {}).values()
                    if isinstance(entry, AclEntry)
                ),
            )
        return SecuritySnapshot(
            revision,
            acls,
            (yield from _updated(self.quotas, ClientQuotaEntry, written, removed)),
            (yield from _updated(self.group_configs, GroupConfigEntry, written, removed)),
            (yield from _updated(self.scram_credentials, ScramCredentialEntry, written, removed)),
            (yield from _updated(self.delegation_tokens, DelegationTokenEntry, written, removed)),
            (yield from _updated(self.client_metrics, ClientMetricsEntry, written, removed)),
            rules,
        )


def _updated(
    known: Mapping[str, _EntryT],
    kind: type[_EntryT],
    written: _Written,
    removed: Collection[str],
) -> Steps[Mapping[str, _EntryT]]:
    after: dict[str, _EntryT] | None = None
    for key, entry in written.get(kind, {}).items():
        yield
        assert isinstance(entry, kind)
        if after is None:
            after = dict(known)
        after[key] = entry
    for key in removed:
        yield
        if key in known:
            if after is None:
                after = dict(known)
            after.pop(key, None)
    return known if after is None else after
