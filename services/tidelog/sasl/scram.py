"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677) with the extension `tokenauth` of KIP-48.

A credential is what a server stores for a user: it proves a password but does not contain it. Channel
binding is not supported, as in Kafka.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import math
import re
import stringprep
import unicodedata
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tidelog.sasl import SCRAM_SHA_256, SCRAM_SHA_512, AuthenticationError

_PROHIBITED: Final[tuple[Callable[[str], bool], ...]] = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
    stringprep.in_table_a1,  # unassigned code points: this is the preparation of a stored string
)


def saslprep(text: str) -> str:
    """Returns the prepared string. Raises ValueError if it contains a prohibited character or mixes
    directions.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in text
        if not stringprep.in_table_b1(character)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    for character in prepared:
        if any(is_prohibited(character) for is_prohibited in _PROHIBITED):
            raise ValueError(f"the character U+{ord(character):04X} is not allowed")
    if any(map(stringprep.in_table_d1, prepared)):
        is_mixed = any(map(stringprep.in_table_d2, prepared))
        ends = stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])
        if is_mixed or not ends:
            raise ValueError("the text mixes writing directions")
    return prepared


MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16_384
"""Kafka's bounds of the iterations in AlterUserScramCredentials (KIP-554)."""
MAX_CLIENT_ITERATIONS: Final = 1_000_000
"""A client refuses more iterations, because a false server could keep it busy for hours."""
MAX_TOKEN_BYTES: Final = 16_384
"""A message of an exchange has far less; names and nonces are short."""
NONCE_BYTES: Final = 24
"""The random bytes of a nonce, before their encoding as base64."""
SALT_ALPHABET: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
SALT_BYTES: Final = 26
"""Kafka's tools create salts of 25 or 26 of these characters (130 random bits in base 36). All of tidelog's
salts look like them, so the salt of an unknown user does not stand out.
"""

_CLIENT_FIRST = re.compile(
    r"(?P<gs2>[ny],(?:a=(?P<authzid>[^,]*))?,)"
    r"(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,(?P<extensions>.*))?)",
    re.DOTALL,
)
_SERVER_FIRST = re.compile(
    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>[1-9][0-9]{0,8})(?:,.*)?",
    re.DOTALL,
)
_CLIENT_FINAL = re.compile(
    r"(?P<without_proof>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[^,]+)*)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_SERVER_FINAL = re.compile(r"v=(?P<signature>[A-Za-z0-9+/=]+)(?:,.*)?", re.DOTALL)
_BAD_ESCAPE = re.compile("=(?!2C|3D)")
_TOKEN_AUTH: Final = "tokenauth=true"


class ScramMechanism(NamedTuple):
    """A SCRAM mechanism. `number` is its number in Kafka's messages (`ScramMechanism`), and `hash_name` its
    hash in hashlib.
    """

    name: str
    number: int
    hash_name: str
    hash_bytes: int


SCRAM_MECHANISMS: Final = (
    ScramMechanism(SCRAM_SHA_256, 1, "sha256", 32),
    ScramMechanism(SCRAM_SHA_512, 2, "sha512", 64),
)
MECHANISM_BY_NAME: Final = {mechanism.name: mechanism for mechanism in SCRAM_MECHANISMS}
MECHANISM_BY_NUMBER: Final = {mechanism.number: mechanism for mechanism in SCRAM_MECHANISMS}


class ScramCredential(NamedTuple):
    """The values that a server stores for one user and mechanism (RFC 5802, section 3)."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations}, [hidden])"


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Returns SaltedPassword, in some milliseconds of CPU time. The password is not prepared, as in Kafka's
    clients.
    """
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential_of_salted(
    mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Returns the credential of a salted password."""
    client_key = _hmac(mechanism, salted, b"Client Key")
    server_key = _hmac(mechanism, salted, b"Server Key")
    return ScramCredential(salt, _hash(mechanism, client_key), server_key, iterations)


def new_credential(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int = MIN_ITERATIONS
) -> ScramCredential:
    """Returns the credential of a password."""
    return credential_of_salted(
        mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations
    )


def salt_from(random_bytes: bytes) -> bytes:
    """Returns a salt of SALT_BYTES characters, made of at least 17 random bytes."""
    number = int.from_bytes(random_bytes, "big")
    salt = bytearray()
    for _ in range(SALT_BYTES):
        number, digit = divmod(number, len(SALT_ALPHABET))
        salt.append(SALT_ALPHABET[digit])
    return bytes(salt)


def decoy_credential(
    mechanism: ScramMechanism, user: str, secret: bytes, users_by_iterations: Mapping[int, int]
) -> ScramCredential:
    """Returns a credential for an unknown user that no password matches. It is the same in every exchange
    with the same secret, so that a client does not learn from the salt whether a user exists.

    Nor does it learn that from the number of iterations: unknown users have each number as often as users
    have it. `users_by_iterations` counts those, and a change of one user changes the number of few others.
    """
    seed = hmac.digest(secret, user.encode(), "sha512")
    key = _hmac(mechanism, secret, user.encode())
    iterations = max(
        users_by_iterations,
        key=lambda number: users_by_iterations[number] / -_log_of_fraction(secret, f"{number} {user}"),
        default=MIN_ITERATIONS,
    )
    return ScramCredential(salt_from(seed), key, key, iterations)


def _log_of_fraction(secret: bytes, text: str) -> float:
    """Returns the logarithm of a fraction above 0 and below 1 that follows from the text, for a weighted
    choice by rendezvous.
    """
    number = int.from_bytes(hmac.digest(secret, text.encode(), "sha256")[:6], "big")
    return math.log((number + 1) / (2**48 + 1))


class ClientFirst(NamedTuple):
    """The first message of an exchange. `is_token` requests authentication by a delegation token, whose id
    is then `user`.
    """

    user: str
    authorization_id: str
    nonce: str
    is_token: bool
    gs2_header: str
    bare: str

    @classmethod
    def parse(cls, token: bytes) -> ClientFirst:
        """Raises AuthenticationError."""
        match = _CLIENT_FIRST.fullmatch(_text(token))
        if match is None:
            raise AuthenticationError("the first SCRAM message is malformed")
        extensions = (match["extensions"] or "").split(",")
        return cls(
            _saslname(match["name"]),
            _saslname(match["authzid"] or ""),
            match["nonce"],
            _TOKEN_AUTH in extensions,
            match["gs2"],
            match["bare"],
        )


class ServerExchange:
    """A server's side of one exchange, from the client's first message on.

    The caller finds the credential of `first.user` and passes a decoy if there is none: `is_known` False lets
    the exchange fail at its end, in the same time and in the same way as with a wrong password.
    """

    __slots__ = ("_credential", "_first", "_is_known", "_mechanism", "_nonce", "_server_first")

    def __init__(
        self,
        mechanism: ScramMechanism,
        first: ClientFirst,
        credential: ScramCredential,
        server_nonce: str,
        *,
        is_known: bool,
    ) -> None:
        self._mechanism = mechanism
        self._first = first
        self._credential = credential
        self._is_known = is_known
        self._nonce = first.nonce + server_nonce
        salt = base64.b64encode(credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={credential.iterations}"

    @property
    def server_first(self) -> bytes:
        """The challenge that answers the client's first message."""
        return self._server_first.encode()

    def finish(self, token: bytes) -> bytes:
        """Checks the client's proof and returns the server's final message. Raises AuthenticationError."""
        match = _CLIENT_FINAL.fullmatch(_text(token))
        if match is None:
            raise AuthenticationError("the final SCRAM message is malformed")
        if match["nonce"] != self._nonce:
            raise AuthenticationError("the SCRAM nonce is not the nonce of this exchange")
        if _decoded(match["binding"]) != self._first.gs2_header.encode():
            raise AuthenticationError("the SCRAM channel binding differs from the first message")
        mechanism, credential = self._mechanism, self._credential
        auth_message = f"{self._first.bare},{self._server_first},{match['without_proof']}".encode()
        signature = _hmac(mechanism, credential.stored_key, auth_message)
        proof = _decoded(match["proof"])
        if len(proof) != mechanism.hash_bytes:
            raise AuthenticationError("the SCRAM proof has a wrong length")
        client_key = _xor(proof, signature)
        is_proven = hmac.compare_digest(_hash(mechanism, client_key), credential.stored_key)
        server_signature = _hmac(mechanism, credential.server_key, auth_message)
        if not (is_proven and self._is_known):
            raise AuthenticationError("the SCRAM proof does not match the user's credential")
        return b"v=" + base64.b64encode(server_signature)


class ClientExchange:
    """A client's side of one exchange: send `first`, then `reply(challenge)`, then call `check`."""

    __slots__ = ("_bare", "_mechanism", "_nonce", "_password", "_server_signature")

    def __init__(
        self, mechanism: ScramMechanism, user: str, password: str, nonce: str, *, is_token: bool = False
    ) -> None:
        """`nonce` is at least 18 random bytes in base64 or hexadecimal digits."""
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={name},r={nonce}" + (f",{_TOKEN_AUTH}" if is_token else "")
        self._server_signature = b""

    @property
    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def reply(self, challenge: bytes) -> bytes:
        """Returns the final message. Raises AuthenticationError."""
        text = _text(challenge)
        match = _SERVER_FIRST.fullmatch(text)
        if match is None or not match["nonce"].startswith(self._nonce) or match["nonce"] == self._nonce:
            raise AuthenticationError("the server's SCRAM challenge is malformed")
        iterations = int(match["iterations"])
        if not MIN_ITERATIONS <= iterations <= MAX_CLIENT_ITERATIONS:
            raise AuthenticationError(
                f"the server requests {iterations} SCRAM iterations; the bounds are {MIN_ITERATIONS} and "
                f"{MAX_CLIENT_ITERATIONS}"
            )
        mechanism = self._mechanism
        salted = salted_password(mechanism, self._password, _decoded(match["salt"]), iterations)
        client_key = _hmac(mechanism, salted, b"Client Key")
        without_proof = f"c=biws,r={match['nonce']}"
        auth_message = f"{self._bare},{text},{without_proof}".encode()
        proof = _xor(client_key, _hmac(mechanism, _hash(mechanism, client_key), auth_message))
        self._server_signature = _hmac(mechanism, _hmac(mechanism, salted, b"Server Key"), auth_message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Checks that the server knows the user's credential, too. Raises AuthenticationError."""
        match = _SERVER_FINAL.fullmatch(_text(server_final))
        if (
            match is None
            or not self._server_signature
            or not hmac.compare_digest(_decoded(match["signature"]), self._server_signature)
        ):
            raise AuthenticationError("the server did not prove that it knows the user's SCRAM credential")


def _hmac(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.hash_name)


def _hash(mechanism: ScramMechanism, data: bytes) -> bytes:
    return hashlib.new(mechanism.hash_name, data).digest()


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _text(token: bytes) -> str:
    if len(token) > MAX_TOKEN_BYTES:
        raise AuthenticationError(f"a SCRAM message of {len(token)} bytes")
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise AuthenticationError("a SCRAM message is not UTF-8") from None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationError("a SCRAM message contains malformed base64") from None


def _saslname(name: str) -> str:
    if _BAD_ESCAPE.search(name):
        raise AuthenticationError("the SCRAM user name is malformed")
    return name.replace("=2C", ",").replace("=3D", "=")
