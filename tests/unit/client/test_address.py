"""The parsing of bootstrap addresses."""

from __future__ import annotations

import pytest

from tidelog.client.address import Address, parse_bootstrap
from tidelog.client.errors import BadAddressError


def test_addresses_in_order() -> None:
    assert parse_bootstrap("a:1, b.example:65535 ,[::1]:9092") == [
        Address("a", 1),
        Address("b.example", 65535),
        Address("::1", 9092),
    ]


@pytest.mark.parametrize(
    "text", ["", ",", "host", "host:", ":9092", "host:0", "host:65536", "host:x", "::1:9092", "host:²"]
)
def test_an_invalid_address_is_named(text: str) -> None:
    with pytest.raises(BadAddressError) as refusal:
        parse_bootstrap(text)
    assert "\n" not in str(refusal.value)
    assert text.strip(",") in str(refusal.value)


def test_an_ipv6_address_is_shown_in_brackets() -> None:
    assert [str(a) for a in parse_bootstrap("[::1]:9092,h:1")] == ["[::1]:9092", "h:1"]
