"""The headers of dead letters (KIP-1191), as Kafka's `ShareGroupDLQRecordHelper` writes them.

A dead letter has the headers of its record first, and then these, each once, with texts in UTF-8. A dead
letter of a dead letter has them twice, and the last ones are its own.
"""

from __future__ import annotations

from typing import Final

TOPIC: Final = "__dlq.errors.topic"
PARTITION: Final = "__dlq.errors.partition"
OFFSET: Final = "__dlq.errors.offset"
GROUP: Final = "__dlq.errors.group"
DELIVERY_COUNT: Final = "__dlq.errors.delivery.count"
MESSAGE: Final = "__dlq.errors.message"
HEADERS: Final = (TOPIC, PARTITION, OFFSET, GROUP, DELIVERY_COUNT, MESSAGE)
"""The headers in the order in which they are written."""

REJECTED: Final = "Offset rejected by client."
DELIVERED_TOO_OFTEN: Final = "Offset delivery count exceeded the threshold."
"""The reasons, which MESSAGE has (Kafka's `ShareGroupDLQManager`)."""
