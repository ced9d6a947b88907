"""Delegation tokens (KIP-48): the secret of a token, and the SCRAM credential that proves its possession."""

from __future__ import annotations

import base64
import hmac

from tidelog.sasl.scram import MIN_ITERATIONS, ScramCredential, ScramMechanism, new_credential, salt_from


def token_hmac(secret_key: bytes, token_id: str) -> bytes:
    """Returns the secret of a token: HMAC-SHA-512 of its id, as in Kafka. Its base64 is the password."""
    return hmac.digest(secret_key, token_id.encode(), "sha512")


def token_credential(mechanism: ScramMechanism, secret_key: bytes, token_id: str) -> ScramCredential:
    """Returns the credential of a token, in some milliseconds of CPU time. It is always the same."""
    secret = token_hmac(secret_key, token_id)
    salt = salt_from(hmac.digest(secret, mechanism.name.encode(), "sha512"))
    password = base64.b64encode(secret).decode()
    return new_credential(mechanism, password, salt, MIN_ITERATIONS)
