"""SCRAM: the examples of the RFCs, and exchanges with aiokafka's client and our own."""

from __future__ import annotations

import base64

import pytest
from aiokafka.conn import ScramAuthenticator
from hypothesis import given
from hypothesis import strategies as st

from tidelog.sasl import AuthenticationError
from tidelog.sasl.scram import (
    MIN_ITERATIONS,
    SALT_ALPHABET,
    SCRAM_MECHANISMS,
    ClientExchange,
    ClientFirst,
    ScramCredential,
    ScramMechanism,
    ServerExchange,
    decoy_credential,
    new_credential,
    salt_from,
)

SHA_256 = SCRAM_MECHANISMS[0]
SHA_1 = ScramMechanism("SCRAM-SHA-1", 0, "sha1", 20)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)
NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)
SALT = b"0123456789abcdef"


def _server(
    mechanism: ScramMechanism, first: bytes, credential: ScramCredential, *, is_known: bool = True
) -> ServerExchange:
    return ServerExchange(mechanism, ClientFirst.parse(first), credential, "server", is_known=is_known)


@pytest.mark.parametrize(
    ("mechanism", "client_nonce", "server_nonce", "salt", "client_final", "server_final"),
    [
        (
            SHA_1,
            "fyko+d2lbbFgONRv9qkxdawL",
            "3rfcNHYJY1ZVvWVs7j",
            "QSXCR+Q6sek8bf92",
            "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
            "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
        ),
        (
            SHA_256,
            "rOprNGfwEbeRWgbNEkqO",
            "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
            "W22ZaJ0SNY7soEsUEjb6gQ==",
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
            "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
            "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        ),
    ],
    ids=["RFC 5802, section 5", "RFC 7677, section 3"],
)
def test_the_examples_of_the_rfcs(
    mechanism: ScramMechanism,
    client_nonce: str,
    server_nonce: str,
    salt: str,
    client_final: str,
    server_final: str,
) -> None:
    salt_bytes = base64.b64decode(salt)
    client = ClientExchange(mechanism, "user", "pencil", client_nonce)
    assert client.first == f"n,,n=user,r={client_nonce}".encode()
    challenge = f"r={client_nonce}{server_nonce},s={salt},i=4096".encode()
    assert client.reply(challenge) == client_final.encode()
    client.check(server_final.encode())

    credential = new_credential(mechanism, "pencil", salt_bytes, 4096)
    first = ClientFirst.parse(client.first)
    server = ServerExchange(mechanism, first, credential, server_nonce, is_known=True)
    assert server.server_first == challenge
    assert server.finish(client_final.encode()) == server_final.encode()


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS, ids=lambda mechanism: mechanism.name)
@given(user=TEXTS, password=TEXTS, is_token=st.booleans())
def test_our_client_and_server_authenticate_each_other(
    mechanism: ScramMechanism, user: str, password: str, is_token: bool
) -> None:
    client = ClientExchange(mechanism, user, password, "client", is_token=is_token)
    first = ClientFirst.parse(client.first)
    assert (first.user, first.is_token) == (user, is_token)
    server = _server(mechanism, client.first, new_credential(mechanism, password, SALT))
    client.check(server.finish(client.reply(server.server_first)))


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS, ids=lambda mechanism: mechanism.name)
@given(user=NAMES, password=TEXTS)
def test_the_client_of_aiokafka_authenticates(mechanism: ScramMechanism, user: str, password: str) -> None:
    client = ScramAuthenticator(
        loop=None, sasl_plain_username=user, sasl_plain_password=password, sasl_mechanism=mechanism.name
    )
    token, _ = next(client._authenticator)
    server = _server(mechanism, token, new_credential(mechanism, password, SALT))
    token, _ = client._authenticator.send(server.server_first)
    with pytest.raises(StopIteration):
        client._authenticator.send(server.finish(token))


@given(password=TEXTS, other=TEXTS)
def test_a_wrong_password_fails(password: str, other: str) -> None:
    client = ClientExchange(SHA_256, "user", other, "client")
    server = _server(SHA_256, client.first, new_credential(SHA_256, password, SALT))
    final = client.reply(server.server_first)
    if password != other:
        with pytest.raises(AuthenticationError, match="does not match"):
            server.finish(final)


def test_an_unknown_user_fails_only_at_the_end() -> None:
    """A client that asks twice gets the same salt, of the same form as that of a known user."""
    secret = b"secret of the cluster"
    client = ClientExchange(SHA_256, "nobody", "guess", "client")
    decoy = decoy_credential(SHA_256, "nobody", secret, {})
    assert decoy == decoy_credential(SHA_256, "nobody", secret, {})
    assert decoy.salt != decoy_credential(SHA_256, "other", secret, {}).salt
    assert len(decoy.salt) == len(salt_from(bytes(range(20)))) and set(decoy.salt) <= set(SALT_ALPHABET)
    assert decoy.iterations == MIN_ITERATIONS
    server = _server(SHA_256, client.first, decoy, is_known=False)
    with pytest.raises(AuthenticationError, match="does not match"):
        server.finish(client.reply(server.server_first))


def test_unknown_users_have_the_iterations_of_users() -> None:
    """With one number for all unknown users, another number in an answer showed that the user exists."""
    secret = b"secret of the cluster"

    def numbers(users_by_iterations: dict[int, int]) -> list[int]:
        decoys = [decoy_credential(SHA_256, f"user {n}", secret, users_by_iterations) for n in range(2000)]
        return [decoy.iterations for decoy in decoys]

    assert set(numbers({8192: 7})) == {8192}
    before = numbers({4096: 750, 10_000: 250})
    assert 430 < before.count(10_000) < 570 and set(before) == {4096, 10_000}  # a quarter, five sigmas
    after = numbers({4096: 750, 10_000: 251})
    assert sum(a != b for a, b in zip(before, after, strict=True)) < 20  # one user does not change them all


def test_a_right_proof_for_a_decoy_fails() -> None:
    client = ClientExchange(SHA_256, "user", "pencil", "client")
    server = _server(SHA_256, client.first, new_credential(SHA_256, "pencil", SALT), is_known=False)
    with pytest.raises(AuthenticationError):
        server.finish(client.reply(server.server_first))


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"n,,",
        b"n,,n=user",
        b"n,,n=,r=nonce",
        b"p=tls-unique,,n=user,r=nonce",
        b"n,,m=extension,n=user,r=nonce",
        b"n,,n=us=er,r=nonce",
        b"n,,n=user,r=no nonce",
        b"\xff\xfe",
        b"n,,n=" + b"x" * 20_000 + b",r=nonce",
    ],
)
def test_a_malformed_first_message_is_refused(token: bytes) -> None:
    with pytest.raises(AuthenticationError):
        ClientFirst.parse(token)


@pytest.mark.parametrize(
    "final",
    [
        b"",
        b"c=biws,r=clientserver",
        b"c=biws,r=client,p=AAAA",
        b"c=eSws,r=clientserver,p=AAAA",
        b"c=biws,r=clientserver,p=AAAA",
        b"c=biws,r=clientserver,p=A",
        b"c=biws,r=clientserver,p=" + base64.b64encode(b"x" * 32),
    ],
)
def test_a_false_final_message_is_refused(final: bytes) -> None:
    server = _server(SHA_256, b"n,,n=user,r=client", new_credential(SHA_256, "pencil", SALT))
    with pytest.raises(AuthenticationError):
        server.finish(final)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_never_authenticate(token: bytes) -> None:
    server = _server(SHA_256, b"n,,n=user,r=client", new_credential(SHA_256, "pencil", SALT))
    with pytest.raises(AuthenticationError):
        server.finish(token)


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"r=client,s=QSXC,i=4096",
        b"r=other,s=QSXC,i=4096",
        b"r=clientserver,s=QSXC,i=1",
        b"r=clientserver,s=QSXC,i=999999999",
        b"r=clientserver,s=Q,i=4096",
    ],
)
def test_a_client_refuses_a_false_challenge(challenge: bytes) -> None:
    with pytest.raises(AuthenticationError):
        ClientExchange(SHA_256, "user", "pencil", "client").reply(challenge)


def test_a_client_refuses_a_server_that_does_not_know_the_credential() -> None:
    client = ClientExchange(SHA_256, "user", "pencil", "client")
    with pytest.raises(AuthenticationError):
        client.check(b"v=")
    server = _server(SHA_256, client.first, new_credential(SHA_256, "pencil", SALT))
    client.reply(server.server_first)
    with pytest.raises(AuthenticationError):
        client.check(b"v=" + base64.b64encode(b"x" * 32))


def test_a_credential_is_not_shown() -> None:
    credential = new_credential(SHA_256, "pencil", SALT)
    assert "key" not in repr(credential) and "hidden" in repr(credential)
