"""The snapshot of what a broker knows about clients beside their connections: ACLs, client quotas,
settings of groups, credentials, and subscriptions to their metrics.

The controller writes each item as one entry of the metadata store (`tidelog.metadata.entries.SecurityEntry`)
and sends the changed entries to all brokers with UpdateMetadata, as it does with dynamic settings. A broker
that registers receives all entries before it accepts connections. `MetadataView.security` is the current
snapshot. A change replaces it by another object, so a result that was computed from a snapshot stays valid
as long as `view.security is snapshot`.

To add a part, such as the credentials of users:

1. In `metadata/entries.py`, add its entry class, its prefix in SECURITY_PREFIXES, its case in
   `_decode_entry`, and the class to `SecurityEntry`.
2. In `controller/core/state.py`, keep the entries in a dict, which `apply`, `apply_removal`,
   `security_entry` and `security_entries` use. Decisions read that dict and return `Write` and `Erase`.
3. Here, add the attribute, and its case in `updated`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, TypeVar

from tidelog.broker.authorization.acl_index import AclIndex
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
    from tidelog.rpc.broker_commands import SecurityUpdate

_EntryT = TypeVar("_EntryT", bound=SecurityEntry)


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

    def replaced(self, update: SecurityUpdate) -> SecuritySnapshot:
        """Returns the snapshot of a full update. It is this object if nothing has changed, as after a change
        of the controller.
        """
        known: dict[str, SecurityEntry] = {}
        for part in fields(self):  # every part, so that none is forgotten and keeps what was removed
            entries = getattr(self, part.name)
            if isinstance(entries, Mapping):
                known.update(entries)
        wanted = {entry.key: entry for entry in update.entries}
        changed = tuple(entry for key, entry in wanted.items() if known.get(key) != entry)
        removed = tuple(key for key in known if key not in wanted)
        if not changed and not removed:
            return self
        return self.updated(update._replace(entries=changed, removed=removed))

    def updated(self, update: SecurityUpdate) -> SecuritySnapshot:
        """Returns the snapshot after an update. Parts without changes stay the same objects."""
        acls, rules = _updated(self.acls, AclEntry, update), self.rules
        if acls is not self.acls:
            rules = rules.changed(
                (self.acls[key].binding for key in update.removed if key in self.acls),
                (entry.binding for entry in update.entries if isinstance(entry, AclEntry)),
            )
        return SecuritySnapshot(
            update.revision,
            acls,
            _updated(self.quotas, ClientQuotaEntry, update),
            _updated(self.group_configs, GroupConfigEntry, update),
            _updated(self.scram_credentials, ScramCredentialEntry, update),
            _updated(self.delegation_tokens, DelegationTokenEntry, update),
            _updated(self.client_metrics, ClientMetricsEntry, update),
            rules,
        )


def _updated(
    known: Mapping[str, _EntryT], kind: type[_EntryT], update: SecurityUpdate
) -> Mapping[str, _EntryT]:
    written = {entry.key: entry for entry in update.entries if isinstance(entry, kind)}
    removed = [key for key in update.removed if key in known]
    if not written and not removed:
        return known
    after = {**known, **written}
    for key in removed:
        del after[key]
    return after
