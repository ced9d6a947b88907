"""UpdateFeatures (KIP-584, KIP-1022) and DescribeQuorum (KIP-595, KIP-836): what clients of Kafka's KRaft
expect of a cluster that has no log of metadata (ADR 0039).

An update changes finalized feature levels within what this version supports. The refusals are those of
Kafka's `FeatureControlManager`. A level below the need of another feature is refused, and so is a downgrade
of metadata.version that would lose metadata in Kafka, even an unsafe one.

All controllers read the same metadata store, and the one that holds the key `/controller` is active. So the
voters of the only quorum are the controllers that have a lease now, the leader is the active one, the epoch
is the controller epoch, and there are no observers. Every controller's log ends at the store's revision,
because a standby reads the whole store when it is elected. The times of standbys are unknown (-1).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from tidelog.controller.core.decision import Context, ControllerDecision, Write
from tidelog.controller.core.state import ClusterState
from tidelog.controller.core.topics import METADATA_TOPIC
from tidelog.metadata.entries import FeaturesEntry
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.features import DEPENDENCIES, METADATA_CHANGES, METADATA_VERSION, SUPPORTED_FEATURES
from tidelog.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Node,
    ReplicaState,
    ResponsePartitionData,
    ResponseTopicData,
)
from tidelog.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_PER_FEATURE_RESULTS_UP_TO_VERSION: Final = 1
METADATA_PARTITION: Final = 0
_UNKNOWN_TIME: Final = -1


class UpgradeType(IntEnum):
    """Kafka's `FeatureUpdate.UpgradeType`."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


def update_features(
    state: ClusterState, context: Context, request: UpdateFeaturesRequest, api_version: int
) -> ControllerDecision[UpdateFeaturesResponse]:
    """Applies all updates or none: one refused update refuses the request."""
    levels = dict(state.features.levels)
    try:
        for update in request.feature_updates:
            if len([other for other in request.feature_updates if other.feature == update.feature]) > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{update.feature} is given more than once.")
            _check(levels.get(update.feature, 0), update, api_version)
            levels[update.feature] = update.max_version_level
            if update.max_version_level == 0:
                del levels[update.feature]
        _check_dependencies(levels)
    except KafkaError as error:
        refused = UpdateFeaturesResponse(
            error_code=error.code,
            error_message="The update failed for all features since the following feature had an error: "
            f"{error}",
        )
        return ControllerDecision((), refused)
    results = (
        [UpdatableFeatureResult(update.feature, ErrorCode.NONE, None) for update in request.feature_updates]
        if api_version <= _PER_FEATURE_RESULTS_UP_TO_VERSION
        else []
    )
    reply = UpdateFeaturesResponse(error_message=None, results=results)
    if request.validate_only or levels == state.features.levels:
        return ControllerDecision((), reply)
    return ControllerDecision((Write(FeaturesEntry(levels)),), reply)


def _check(current: int, update: FeatureUpdateKey, api_version: int) -> None:
    name, wanted = update.feature, update.max_version_level
    kind = _upgrade_type(update, api_version)
    supported = SUPPORTED_FEATURES.get(name)
    if supported is None:
        raise _invalid(update, "The feature is not supported by this cluster.")
    if not supported.min_level <= wanted <= supported.max_level:
        raise _invalid(
            update, f"This cluster only supports versions {supported.min_level}-{supported.max_level}"
        )
    if wanted < current and kind is UpgradeType.UPGRADE:
        raise _invalid(
            update,
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or"
            f" unsafe downgrade; its version is {current}.",
        )
    if wanted > current and kind is not UpgradeType.UPGRADE:
        raise _invalid(update, f"Can't downgrade to a newer version; its version is {current}.")
    if name == METADATA_VERSION and any(wanted < level <= current for level in METADATA_CHANGES):
        if kind is UpgradeType.SAFE_DOWNGRADE:
            raise _invalid(
                update,
                "Refusing to perform the requested downgrade because it might delete metadata information.",
            )
        if kind is UpgradeType.UNSAFE_DOWNGRADE:
            raise _invalid(update, "Unsafe metadata downgrade is not supported in this version.")


def _upgrade_type(update: FeatureUpdateKey, api_version: int) -> UpgradeType:
    if api_version == 0:
        return UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
    try:
        return UpgradeType(update.upgrade_type)
    except ValueError:
        raise _invalid(update, "The controller does not support the given upgrade type.") from None


def _check_dependencies(levels: Mapping[str, int]) -> None:
    for (name, level), (needed, least) in DEPENDENCIES.items():
        if levels.get(name, 0) >= level and levels.get(needed, 0) < least:
            raise KafkaError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"{name} could not be {level} because it depends on {needed} level {least}",
            )


def _invalid(update: FeatureUpdateKey, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"Invalid update version {update.max_version_level} for feature {update.feature}. {reason}",
    )


def describe_quorum(
    state: ClusterState, context: Context, request: DescribeQuorumRequest, api_version: int
) -> ControllerDecision[DescribeQuorumResponse]:
    """Describes the only quorum. Other partitions get UNKNOWN_TOPIC_OR_PARTITION."""
    topics = []
    is_described = False
    for topic in request.topics:
        partitions = []
        for asked in topic.partitions:
            if topic.topic_name == METADATA_TOPIC and asked.partition_index == METADATA_PARTITION:
                is_described = True
                partitions.append(_quorum(state, context))
            else:
                partitions.append(
                    ResponsePartitionData(
                        asked.partition_index,
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        "There is no quorum for this partition",
                    )
                )
        topics.append(ResponseTopicData(topic.topic_name, partitions))
    # The controllers have no listener for Kafka's protocol: brokers forward requests to them.
    nodes = [Node(controller_id) for controller_id in _voters(state)] if is_described else []
    return ControllerDecision((), DescribeQuorumResponse(error_message=None, topics=topics, nodes=nodes))


def _voters(state: ClusterState) -> list[int]:
    return sorted({state.active_controller_id, *state.controllers})


def _quorum(state: ClusterState, context: Context) -> ResponsePartitionData:
    leader = state.active_controller_id
    return ResponsePartitionData(
        partition_index=METADATA_PARTITION,
        error_message=None,
        leader_id=leader,
        leader_epoch=context.controller_epoch,
        high_watermark=state.latest_revision,
        current_voters=[
            ReplicaState(
                replica_id=controller_id,
                log_end_offset=state.latest_revision,
                last_fetch_timestamp=context.now_ms if controller_id == leader else _UNKNOWN_TIME,
                last_caught_up_timestamp=context.now_ms if controller_id == leader else _UNKNOWN_TIME,
            )
            for controller_id in _voters(state)
        ],
    )
