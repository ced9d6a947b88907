"""A service does not listen for calls of other machines without certificates."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tidelog.cli.service_options import is_loopback
from tidelog.cli.service_process import open_rpc_door
from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.setting import SettingError


def open_at(listener: str, **others: str) -> str:
    given = {"tidelog.rpc.listener": listener, "tidelog.rpc.advertised.address": "127.0.0.1:0", **others}
    settings = BrokerSettings.parse(given)

    async def opened() -> str:
        async with contextlib.AsyncExitStack() as stack:
            return await open_rpc_door(settings, stack, tls=None)

    return asyncio.run(opened())


@pytest.mark.parametrize("listener", ["0.0.0.0:0", "[::]:0", "10.1.2.3:0", "example.invalid:0"])
def test_plaintext_on_another_address_is_refused(listener: str) -> None:
    with pytest.raises(SettingError, match=r"tidelog\.rpc\.listener: .* is not a loopback address"):
        open_at(listener)


def test_plaintext_is_accepted_on_a_loopback_address() -> None:
    assert open_at("127.0.0.1:0").startswith("127.0.0.1:")


def test_plaintext_is_accepted_if_it_is_allowed() -> None:
    assert open_at("0.0.0.0:0", **{"tidelog.rpc.allow.plaintext": "true"})


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("localhost.evil:1", False),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("192.168.0.1:1", False),
    ],
)
def test_loopback_addresses(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected
