"""SASL mechanisms as pure exchanges: each takes the peer's tokens as arguments and returns its own.

Brokers use the servers' sides, and tools and follower brokers use the clients' sides. Nothing here reads a
clock, a file or a source of randomness; nonces are arguments.
"""

from __future__ import annotations

from typing import Final

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)


class AuthenticationError(Exception):
    """The peer did not prove its identity, or its token is malformed. The message is for this side's log; it
    may name what was wrong, which the peer must not learn.
    """
