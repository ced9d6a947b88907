"""AlterClientQuotas and DescribeClientQuotas (KIP-546). The controller stores and describes quotas; brokers
enforce them.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, Protocol

from tidelog.controller.core.decision import (
    Context,
    ControllerDecision,
    DecisionSteps,
    Erase,
    Record,
    Write,
)
from tidelog.controller.core.state import ClusterState
from tidelog.metadata.entries import ClientQuotaEntry, QuotaEntity
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import MAX_NAME_BYTES, is_too_long
from tidelog.wire.messages import alter_client_quotas as alter
from tidelog.wire.messages import describe_client_quotas as describe

MAX_QUOTAS: Final = 100_000
"""The entities of a cluster that may have quotas. Every broker holds all quotas in memory."""
_USER, _CLIENT_ID, _IP = "user", "client-id", "ip"
_ENTITY_TYPES: Final = frozenset({_USER, _CLIENT_ID, _IP})
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = float(2**63 - 1)
"""The greatest integer as Kafka compares it: as a floating-point number."""
# Maps each quota key to whether its value must be an integer.
_USER_AND_CLIENT_QUOTAS: Final[Mapping[str, bool]] = {
    "producer_byte_rate": True,
    "consumer_byte_rate": True,
    "request_percentage": False,
    "controller_mutation_rate": False,
}
_IP_QUOTAS: Final[Mapping[str, bool]] = {"connection_creation_rate": True}


class MatchType(IntEnum):
    """The match types of a describe filter: an exact name, the default entity, or any entity."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


class _EntityPart(Protocol):
    entity_type: str
    entity_name: str | None


def alter_client_quotas(
    state: ClusterState, context: Context, request: alter.AlterClientQuotasRequest, api_version: int
) -> ControllerDecision[alter.AlterClientQuotasResponse]:
    records: list[Record] = []
    responses = []
    seen: set[str] = set()
    for entry in request.entries:
        code, message = ErrorCode.NONE, None
        try:
            entity = _entity(entry.entity)
            key = ClientQuotaEntry(entity, {}).key
            if key in seen:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "An entity is given more than once.")
            seen.add(key)
            before = state.quotas.get(key)
            if before is None and any(is_too_long(name) for _, name in entity.parts if name is not None):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Invalid client quota entity: a name has more than {MAX_NAME_BYTES} bytes",
                )
            values = _changed(entity, before.values if before else {}, entry.ops)
            if values and before is None and len(state.quotas) + len(records) >= MAX_QUOTAS:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION, f"The cluster has quotas for {MAX_QUOTAS} entities already."
                )
            if values:
                records.append(Write(ClientQuotaEntry(entity, values)))
            elif before is not None:
                records.append(Erase(key))
        except KafkaError as error:
            code, message = error.code, error.message
        parts = [alter.EntityData(part.entity_type, part.entity_name) for part in entry.entity]
        responses.append(alter.ResponseEntryData(code, message, parts))
    return ControllerDecision(
        () if request.validate_only else tuple(records), alter.AlterClientQuotasResponse(entries=responses)
    )


def describe_client_quotas(
    state: ClusterState, context: Context, request: describe.DescribeClientQuotasRequest, api_version: int
) -> DecisionSteps[describe.DescribeClientQuotasResponse]:
    try:
        wanted = _filter(request.components)
    except KafkaError as error:
        refusal = describe.DescribeClientQuotasResponse(
            error_code=error.code, error_message=error.message, entries=None
        )
        return ControllerDecision((), refusal)
    entries = []
    for quota in state.quotas.values():
        yield
        if _matches(dict(quota.entity.parts), wanted, strict=request.strict):
            parts = [describe.EntityData(kind, name) for kind, name in quota.entity.parts]
            values = [describe.ValueData(key, value) for key, value in quota.values.items()]
            entries.append(describe.EntryData(parts, values))
    return ControllerDecision((), describe.DescribeClientQuotasResponse(error_message=None, entries=entries))


def _filter(components: Sequence[describe.ComponentData]) -> dict[str, describe.ComponentData]:
    """Returns the filter's components by entity type. Raises the errors of Kafka's `ClientQuotasImage`."""
    wanted: dict[str, describe.ComponentData] = {}
    for component in components:
        kind = component.entity_type
        if not kind:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in wanted:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Entity type {kind} is given more than once.")
        if kind not in _ENTITY_TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if component.match_type not in MatchType.__members__.values():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}")
        is_exact = component.match_type == MatchType.EXACT
        if is_exact != (component.match is not None):
            problem = "an exact match needs a name" if is_exact else "only an exact match takes a name"
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid filter for {kind}: {problem}")
        wanted[kind] = component
    if _IP in wanted and len(wanted) > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid filter: ip cannot be combined with other types")
    return wanted


def _matches(
    entity: Mapping[str, str | None], wanted: Mapping[str, describe.ComponentData], *, strict: bool
) -> bool:
    if strict and entity.keys() != wanted.keys():
        return False
    for kind, component in wanted.items():
        if kind not in entity:
            return False
        if component.match_type == MatchType.EXACT and (
            entity[kind] is None or entity[kind] != component.match
        ):
            return False
        if component.match_type == MatchType.DEFAULT and entity[kind] is not None:
            return False
    return True


def _entity(parts: Sequence[_EntityPart]) -> QuotaEntity:
    kinds = [part.entity_type for part in parts]
    if not kinds:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity")
    if len(set(kinds)) != len(kinds):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid client quota entity: duplicate entity type")
    unknown = sorted(set(kinds) - _ENTITY_TYPES)
    if unknown:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {unknown[0]}")
    if _IP in kinds and len(kinds) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Invalid client quota entity: ip cannot be combined with other types",
        )
    if any(part.entity_name == "" for part in parts):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid client quota entity: an empty name")
    if _IP in kinds and parts[0].entity_name is not None:
        _check_address(parts[0].entity_name)
    return QuotaEntity(tuple(sorted((part.entity_type, part.entity_name) for part in parts)))


def _check_address(name: str) -> None:
    """Refuses a name that no connection has. Kafka also resolves host names, once, when it is asked."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} is not an IP address") from None


def _changed(
    entity: QuotaEntity, before: Mapping[str, float], operations: Iterable[alter.OpData]
) -> dict[str, float]:
    accepted = _IP_QUOTAS if entity.parts[0][0] == _IP else _USER_AND_CLIENT_QUOTAS
    values = dict(before)
    for operation in operations:
        key = operation.key
        if key not in accepted:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid configuration key {key}")
        if operation.remove:
            values.pop(key, None)
            continue
        value = operation.value
        if not math.isfinite(value) or value <= 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Quota {key} must be greater than 0")
        if accepted[key] and not value.is_integer():
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{key} must be an integer, not {value}")
        if accepted[key] and value > _INT64_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Quota {key} must be at most {2**63 - 1}")
        if key in _IP_QUOTAS and value > _INT32_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Quota {key} must be at most {_INT32_MAX}")
        values[key] = value
    return values
