"""Delegation tokens (KIP-48): the secret of a token, and the SCRAM credential that proves its possession."""

from __future__ import annotations

import base64
import hmac
from typing import Final

from tidelog.sasl.scram import MIN_ITERATIONS, ScramCredential, ScramMechanism, new_credential, salt_from

TOKEN_ITERATIONS: Final = MIN_ITERATIONS
"""The SCRAM iterations of the credential of each token, as in Kafka."""


def token_hmac(secret_key: bytes, token_id: str) -> bytes:
    """Returns the secret of a token: HMAC-SHA-512 of its id, as in Kafka. Its base64 is the password."""
    return hmac.digest(secret_key, token_id.encode(), "sha512")


class TokenSecrets:
    """Finds the ids of tokens by their secrets. It computes the secret of each token once, because a cluster
    may have thousands of tokens and any client may ask for any secret.
    """

    def __init__(self) -> None:
        self._secret_key = b""
        self._secrets: dict[str, bytes | None] = {}
        """The secret of each token id, None until it is needed."""
        self._ids: dict[bytes, str] = {}
        self._missing: set[str] = set()

    def add(self, token_id: str) -> None:
        if token_id not in self._secrets:
            self._secrets[token_id] = None
            self._missing.add(token_id)

    def remove(self, token_id: str) -> None:
        secret = self._secrets.pop(token_id, None)
        self._missing.discard(token_id)
        if secret is not None:
            del self._ids[secret]

    def find(self, secret_key: bytes, secret: bytes) -> str | None:
        """Returns the id of the token with this secret, or None. The first call takes some microseconds for
        each token. The time of a call does not help to guess a secret, because Python's hashes are keyed.
        """
        if secret_key != self._secret_key:
            self._secret_key = secret_key
            self._ids.clear()
            self._missing.update(self._secrets)
        for token_id in self._missing:
            computed = token_hmac(secret_key, token_id)
            self._secrets[token_id] = computed
            self._ids[computed] = token_id
        self._missing.clear()
        return self._ids.get(secret)


def token_credential(mechanism: ScramMechanism, secret_key: bytes, token_id: str) -> ScramCredential:
    """Returns the credential of a token, in some milliseconds of CPU time. It is always the same."""
    secret = token_hmac(secret_key, token_id)
    salt = salt_from(hmac.digest(secret, mechanism.name.encode(), "sha512"))
    password = base64.b64encode(secret).decode()
    return new_credential(mechanism, password, salt, TOKEN_ITERATIONS)
