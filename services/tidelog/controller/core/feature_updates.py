"""UpdateFeatures (KIP-584, KIP-1022): finalized feature levels within what this version supports."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from tidelog.controller.core.decision import Context, ControllerDecision, Write
from tidelog.controller.core.state import ClusterState
from tidelog.metadata.entries import FeaturesEntry
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.features import SUPPORTED_FEATURES
from tidelog.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_PER_FEATURE_RESULTS_UP_TO_VERSION: Final = 1


class UpgradeType(IntEnum):
    """Kafka's `FeatureUpdate.UpgradeType`."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


def update_features(
    state: ClusterState, context: Context, request: UpdateFeaturesRequest, api_version: int
) -> ControllerDecision[UpdateFeaturesResponse]:
    """Applies all updates or none: one refused update refuses the request."""
    levels = dict(state.feature_levels)
    refused: KafkaError | None = None
    for update in request.feature_updates:
        try:
            if len([other for other in request.feature_updates if other.feature == update.feature]) > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{update.feature} is given more than once.")
            _check(levels.get(update.feature, 0), update, api_version)
        except KafkaError as error:
            refused = KafkaError(
                error.code,
                f"The update failed for all features since the following feature had an error: {error}",
            )
            break
        levels[update.feature] = update.max_version_level
        if update.max_version_level == 0:
            del levels[update.feature]
    if refused is not None:
        return ControllerDecision(
            (), UpdateFeaturesResponse(error_code=refused.code, error_message=refused.message)
        )
    results = (
        [UpdatableFeatureResult(update.feature, ErrorCode.NONE, None) for update in request.feature_updates]
        if api_version <= _PER_FEATURE_RESULTS_UP_TO_VERSION
        else []
    )
    reply = UpdateFeaturesResponse(error_message=None, results=results)
    if request.validate_only or levels == state.feature_levels:
        return ControllerDecision((), reply)
    return ControllerDecision((Write(FeaturesEntry(levels)),), reply)


def _check(current: int, update: FeatureUpdateKey, api_version: int) -> None:
    name, wanted = update.feature, update.max_version_level
    supported = SUPPORTED_FEATURES.get(name)
    if supported is None:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION, f"The feature {name} is not supported by this cluster."
        )
    if (wanted != 0 and not supported.min_level <= wanted <= supported.max_level) or wanted < 0:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{name} cannot be {wanted}: supported are {supported.min_level} to {supported.max_level}.",
        )
    if wanted == 0 and supported.min_level > 0:
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, f"{name} cannot be disabled.")
    if api_version == 0:
        kind = UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
    elif update.upgrade_type in UpgradeType.__members__.values():
        kind = UpgradeType(update.upgrade_type)
    else:
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, f"Unknown upgrade type {update.upgrade_type}.")
    if wanted < current and kind is UpgradeType.UPGRADE:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{name} is at {current}; to lower it to {wanted}, set the upgrade type to a downgrade.",
        )
    if wanted > current and kind is not UpgradeType.UPGRADE:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION, f"{name} is at {current}; {wanted} is not a downgrade."
        )
