"""The settings of a subscription to clients' metrics (KIP-714): which clients push which metrics how often.

The settings and their limits are those of Kafka's `ClientMetricsConfigs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import re2

from tidelog.model.errors import ErrorCode, KafkaError

METRICS: Final = "metrics"
INTERVAL_MS: Final = "interval.ms"
MATCH: Final = "match"
DEFAULTS: Final[Mapping[str, str]] = {METRICS: "", INTERVAL_MS: "300000", MATCH: ""}
DOCS: Final[Mapping[str, str]] = {
    METRICS: "Prefixes of the names of metrics that clients push. `*` means all metrics.",
    INTERVAL_MS: "Milliseconds between two pushes of a client.",
    MATCH: "Selectors of clients, each as `selector=pattern`. A client must match all of them.",
}
MIN_INTERVAL_MS: Final = 100
MAX_INTERVAL_MS: Final = 3_600_000
DEFAULT_INTERVAL_MS: Final = 300_000
ALL_METRICS: Final = "*"
SELECTORS: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
MAX_NAME_CHARS: Final = 249
MAX_PATTERN_CHARS: Final = 1_000
MAX_LIST_ITEMS: Final = 100
"""The most metrics or selectors of one subscription."""


class MetricsSubscription(NamedTuple):
    """One subscription. `selectors` are the compiled patterns by the attribute of a client."""

    name: str
    metrics: tuple[str, ...]
    interval_ms: int
    selectors: Mapping[str, re2._Regexp[str]]

    def matches(self, client: Mapping[str, str]) -> bool:
        """Returns whether the subscription applies to a client with these attributes (SELECTORS)."""
        return all(
            pattern.fullmatch(client.get(selector, "")) is not None
            for selector, pattern in self.selectors.items()
        )


def parse_subscription(name: str, configs: Mapping[str, str]) -> MetricsSubscription:
    """Returns the subscription with these settings. Raises KafkaError: INVALID_REQUEST for the name, an
    unknown setting or the interval, INVALID_CONFIG for a selector.
    """
    if not name or len(name) > MAX_NAME_CHARS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"The name of a subscription must have 1 to {MAX_NAME_CHARS} characters.",
        )
    for setting in configs:
        if setting not in DEFAULTS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {setting}")
    values = {**DEFAULTS, **configs}
    return MetricsSubscription(
        name,
        tuple(dict.fromkeys(_items(METRICS, values[METRICS]))),
        _interval_ms(values[INTERVAL_MS]),
        dict(_selector(item) for item in _items(MATCH, values[MATCH])),
    )


def _items(setting: str, text: str) -> list[str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if len(items) > MAX_LIST_ITEMS:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{setting} has more than {MAX_LIST_ITEMS} items.")
    return items


def _interval_ms(text: str) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_INTERVAL_MS))
    if not is_number or not MIN_INTERVAL_MS <= int(text) <= MAX_INTERVAL_MS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {text[:20]} for {INTERVAL_MS}, interval must be between {MIN_INTERVAL_MS} and"
            f" {MAX_INTERVAL_MS} (1 hour)",
        )
    return int(text)


def _selector(item: str) -> tuple[str, re2._Regexp[str]]:
    selector, equals, pattern = (part.strip() for part in item.partition("="))
    if not equals or selector not in SELECTORS:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {item[:100]}")
    if len(pattern) > MAX_PATTERN_CHARS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"The pattern of {selector} has more than {MAX_PATTERN_CHARS} characters.",
        )
    options = re2.Options()
    options.log_errors = False  # RE2 writes them to stderr
    try:
        return selector, re2.compile(pattern, options)
    except re2.error:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"The pattern of {selector} is no regular expression: {pattern[:100]}"
        ) from None
    finally:
        re2.purge()  # the module keeps the last 128 expressions, each with its memory
