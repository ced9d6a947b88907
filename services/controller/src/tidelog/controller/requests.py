"""Which decision answers which API. Each is loaded at its first use: a start needs none of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any, Final

from tidelog.controller.core.context import Context
from tidelog.controller.core.records import Decision
from tidelog.controller.core.state import ClusterState
from tidelog.controller.runner import MAX_PROPAGATION_WAIT_MS, Decide
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.rpc.controller_api import ForwardedRequest
from tidelog.wire.api_keys import ApiKey

_CORE: Final = "tidelog.controller.core."
_DECISIONS: Final = {
    ApiKey.CREATE_TOPICS: ("topic_creation", "create_topics"),
    ApiKey.DELETE_TOPICS: ("topic_deletion", "delete_topics"),
    ApiKey.CREATE_PARTITIONS: ("partition_creation", "create_partitions"),
    ApiKey.ALTER_CONFIGS: ("config_changes", "alter_configs"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ("config_changes", "incremental_alter_configs"),
    ApiKey.ELECT_LEADERS: ("leader_requests", "elect_leaders"),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ("reassignments", "alter_partition_reassignments"),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ("reassignments", "list_partition_reassignments"),
    ApiKey.UPDATE_FEATURES: ("feature_updates", "update_features"),
    ApiKey.ALTER_CLIENT_QUOTAS: ("client_quotas", "alter_client_quotas"),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ("client_quotas", "describe_client_quotas"),
}

# A client that gives no time at all is still better served by brokers that know.
MIN_PROPAGATION_WAIT_MS: Final = 1000

DecideRequest = Callable[[ClusterState, Context, Any, int], Decision[Any]]


def decision_for(api_key: int, request: ForwardedRequest) -> tuple[Decide[Any], int]:
    """(the decision, how long in ms its answer may wait for brokers); raises
    KafkaError(UNSUPPORTED_VERSION).
    """
    decide = _decision(api_key)
    timeout_ms: int = getattr(request.message, "timeout_ms", MAX_PROPAGATION_WAIT_MS)
    wait_ms = max(MIN_PROPAGATION_WAIT_MS, min(timeout_ms, MAX_PROPAGATION_WAIT_MS))
    return partial(_decide, decide, request), wait_ms


def _decide(
    decide: DecideRequest, request: ForwardedRequest, state: ClusterState, context: Context
) -> Decision[Any]:
    return decide(state, context, request.message, request.api_version)


@cache
def _decision(api_key: int) -> DecideRequest:
    found = _DECISIONS.get(ApiKey(api_key)) if api_key in ApiKey.__members__.values() else None
    if found is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"The controller doesn't serve API {api_key}.")
    module, name = found
    decide: DecideRequest = getattr(import_module(_CORE + module), name)
    return decide
