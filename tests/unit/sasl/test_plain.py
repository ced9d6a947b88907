"""PLAIN, JAAS texts and SASLprep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.sasl import AuthenticationError
from tidelog.sasl.jaas import JaasError, parse_jaas, quoted
from tidelog.sasl.plain import PlainLogin, user_of
from tidelog.sasl.scram import saslprep

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
PASSWORDS = {"alice": "alice-secret", "bob": "bob-secret"}


def test_a_user_with_the_right_password_is_authenticated() -> None:
    assert user_of(PlainLogin.parse(b"\0alice\0alice-secret"), PASSWORDS) == "alice"
    assert user_of(PlainLogin.parse(b"alice\0alice\0alice-secret"), PASSWORDS) == "alice"


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"alice",
        b"\0alice",
        b"\0alice\0",
        b"\0\0alice-secret",
        b"\0alice\0wrong",
        b"\0alice\0bob-secret",
        b"\0carol\0alice-secret",
        b"bob\0alice\0alice-secret",
        b"\0alice\0alice-secret\0",
        b"\0\xff\0x",
        b"\0alice\0" + b"x" * 20_000,
    ],
)
def test_other_logins_are_refused(token: bytes) -> None:
    with pytest.raises(AuthenticationError):
        user_of(PlainLogin.parse(token), PASSWORDS)


@given(user=st.text(min_size=1, max_size=9), password=st.text(min_size=1, max_size=9))
def test_a_login_survives_its_encoding(user: str, password: str) -> None:
    if "\0" in user + password or any("\ud800" <= c <= "\udfff" for c in user + password):
        return
    login = PlainLogin("", user, password)
    assert PlainLogin.parse(login.encode()) == login
    assert "hidden" in repr(login)


def test_a_jaas_text_of_a_broker() -> None:
    module = parse_jaas(
        f"""{PLAIN_MODULE} required
            username="admin" // the broker itself
            password='admin;secret'
            user_admin="admin;secret" /* both are
            the same */ user_alice="a\\"b\\\\c"
            debug=true;"""
    )
    assert module.class_name == PLAIN_MODULE
    assert module.options["username"] == "admin"
    assert module.options["debug"] == "true"
    assert module.user_passwords == {"admin": "admin;secret", "alice": 'a"b\\c'}
    assert "secret" not in repr(module)


@given(st.dictionaries(st.text("abcxyz", min_size=1, max_size=5), st.text(max_size=12), max_size=4))
def test_quoted_values_survive_parsing(options: dict[str, str]) -> None:
    text = " ".join(f"{name}={quoted(value)}" for name, value in options.items())
    assert parse_jaas(f"{PLAIN_MODULE} required {text};").options == options


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        f"{PLAIN_MODULE};",
        f"{PLAIN_MODULE} required",
        f"{PLAIN_MODULE} sometimes;",
        f"{PLAIN_MODULE} required username;",
        f"{PLAIN_MODULE} required username=;",
        f'{PLAIN_MODULE} required username="open;',
        f"{PLAIN_MODULE} required; {PLAIN_MODULE} required;",
    ],
)
def test_a_malformed_jaas_text_is_refused(text: str) -> None:
    with pytest.raises(JaasError):
        parse_jaas(text)


@pytest.mark.parametrize(
    ("text", "prepared"),
    [("I\u00adX", "IX"), ("user", "user"), ("USER", "USER"), ("\u00aa", "a"), ("\u2168", "IX")],
)
def test_the_examples_of_rfc_4013(text: str, prepared: str) -> None:
    assert saslprep(text) == prepared


@pytest.mark.parametrize("text", ["\u0007", "\u0627\u0031", "a\ufffd"])
def test_prohibited_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not allowed|directions"):
        saslprep(text)
