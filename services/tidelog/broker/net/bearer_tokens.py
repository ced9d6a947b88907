"""Checks bearer tokens (JWTs) with the keys of an identity provider, for OAUTHBEARER.

The keys come from `sasl.oauthbearer.jwks.endpoint.url` (https, http or file). They are read in a thread,
kept for `sasl.oauthbearer.jwks.endpoint.refresh.ms`, and read again when a token names an unknown key, but
not more often than the retry backoff allows. Only signatures with public keys are accepted, whatever a token
says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from time import monotonic
from typing import Any, Final, NamedTuple

import jwt
import structlog

from tidelog.kernel.instants import Backoff, WallMs
from tidelog.process.direct_requests import open_directly
from tidelog.sasl import AuthenticationError
from tidelog.settings.sasl_settings import BearerPlan

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
MAX_JWKS_BYTES: Final = 1024 * 1024
MAX_KEYS: Final = 1000
READ_TIMEOUT_S: Final = 10.0
MAX_TIME_S: Final = 10**15
"""The greatest time in a claim, in seconds since 1970. A response states it in ms, as an int64."""

_log = structlog.get_logger(__name__)


class BearerLogin(NamedTuple):
    """The user of a valid token. `expires_ms` is the wall clock's time at which the token ends."""

    user: str
    expires_ms: WallMs


class BearerTokens:
    """The keys of one identity provider, and the rules for its tokens."""

    def __init__(self, plan: BearerPlan) -> None:
        self.plan = plan
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._read_at_s: float | None = None  # seconds of the monotonic clock
        self._next_attempt_at_s = 0.0
        self._failures = 0
        self._reading: asyncio.Task[None] | None = None

    def has_key_for(self, token: str) -> bool:
        """Returns whether the token can be checked without reading the keys first."""
        if self._read_at_s is None or monotonic() - self._read_at_s > self.plan.refresh_ms / 1000:
            return monotonic() < self._next_attempt_at_s
        return self._key_of(token) is not None or monotonic() < self._next_attempt_at_s

    async def read_keys(self) -> None:
        """Reads the keys again. Several callers share one attempt. A failure is logged, and the old keys
        stay.
        """
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(self._read_ended)
        await asyncio.shield(self._reading)

    def check(self, token: str, now_ms: WallMs) -> BearerLogin:
        """Returns the user of a valid token. Raises AuthenticationError."""
        plan = self.plan
        key = self._key_of(token)
        if key is None:
            raise AuthenticationError("the token is not signed with a key of the identity provider")
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=list(plan.audiences) or None,
                issuer=plan.issuer,
                options={
                    "require": ["exp"],
                    "verify_exp": False,  # checked below, by the broker's clock
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_aud": bool(plan.audiences),
                    "verify_sub": False,
                },
            )
        except (jwt.InvalidTokenError, ValueError, TypeError) as error:
            raise AuthenticationError(f"the token is not valid: {error}") from None
        user = claims.get(plan.user_claim)
        if not isinstance(user, str) or not user:
            raise AuthenticationError(f"the token has no claim {plan.user_claim}")
        now_s, skew_s = now_ms / 1000, plan.clock_skew_s
        expires_s = _number(claims, "exp")
        if expires_s is None or expires_s + skew_s <= now_s:
            raise AuthenticationError("the token has expired")
        for claim in ("nbf", "iat"):
            begins_s = _number(claims, claim)
            if begins_s is not None and begins_s - skew_s > now_s:
                raise AuthenticationError("the token is not valid yet")
        return BearerLogin(user, WallMs(int(expires_s * 1000)))

    def _key_of(self, token: str) -> jwt.PyJWK | None:
        try:
            header = jwt.get_unverified_header(token)
        except jwt.InvalidTokenError:
            return None
        key_id = header.get("kid")
        if key_id is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(key_id)

    async def _read(self) -> None:
        plan = self.plan
        try:
            data = await asyncio.to_thread(_read_url, plan.jwks_url)
            keys = _parse_keys(data)
        except (OSError, ValueError) as error:
            self._failures += 1
            backoff = Backoff(plan.retry_backoff_ms, plan.retry_backoff_max_ms)
            self._next_attempt_at_s = monotonic() + backoff.delay_ms(self._failures) / 1000
            _log.warning(
                "the keys of the identity provider cannot be read", url=plan.jwks_url, reason=str(error)
            )
            return
        self._keys = keys
        self._read_at_s = monotonic()
        self._failures = 0
        # Anyone can send tokens with unknown keys, so the next attempt for one waits for the longest time.
        self._next_attempt_at_s = self._read_at_s + plan.retry_backoff_max_ms / 1000

    def _read_ended(self, task: asyncio.Task[None]) -> None:
        self._reading = None


def _read_url(url: str) -> bytes:
    with open_directly(url, READ_TIMEOUT_S) as response:
        data: bytes = response.read(MAX_JWKS_BYTES + 1)
    if len(data) > MAX_JWKS_BYTES:
        raise ValueError(f"the key set has more than {MAX_JWKS_BYTES} bytes")
    return data


def _parse_keys(data: bytes) -> dict[str, jwt.PyJWK]:
    """Returns the public keys for signatures, by id. Skips keys of other kinds. Raises ValueError."""
    found = json.loads(data)
    rows = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(rows, list) or len(rows) > MAX_KEYS:
        raise ValueError("the key set has no list of keys, or too many keys")
    keys: dict[str, jwt.PyJWK] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or row.get("use", "sig") != "sig" or row.get("kty") == "oct":
            continue
        try:
            key = jwt.PyJWK(row)
        except jwt.PyJWTError:
            continue
        if key.algorithm_name in ALGORITHMS:
            keys[str(row.get("kid", f"#{number}"))] = key
    if not keys:
        raise ValueError("the key set has no public key for signatures")
    return keys


def _number(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AuthenticationError(f"the claim {name} of the token is not a number")
    if not abs(value) <= MAX_TIME_S:  # also NaN, which JSON in Python may contain
        raise AuthenticationError(f"the claim {name} of the token is no time")
    return float(value)
