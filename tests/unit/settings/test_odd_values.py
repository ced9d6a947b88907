"""Values that no setting expects are accepted or refused with a sentence, and raise nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.settings.broker_settings import BrokerSettings
from tidelog.settings.setting import MAX_SHOWN_CHARS, SettingError, settings_of
from tidelog.settings.topic_settings import TopicSettings

DIGITS = "9" * 5_000
ODD_VALUES = (DIGITS, f"-{DIGITS}", f"{DIGITS}.5", f"1e{DIGITS[:9]}", "", " ", "\0", "é", "1,2", "a" * 70_000)
MAX_MESSAGE_CHARS = 2_000


@pytest.mark.parametrize("value", ODD_VALUES, ids=range(len(ODD_VALUES)))
def test_every_setting_accepts_or_refuses_an_odd_value(value: str) -> None:
    for settings_class in (BrokerSettings, TopicSettings):
        for definition in settings_of(settings_class).values():
            try:
                definition.parse(value)
            except SettingError as error:
                assert error.name == definition.name
                assert len(str(error)) < MAX_MESSAGE_CHARS


@pytest.mark.parametrize(
    "texts",
    [
        {"max.connections.per.ip.overrides": f"10.0.0.1:{DIGITS}"},
        {"listeners": f"PLAINTEXT://127.0.0.1:{DIGITS}"},
        {"tidelog.rpc.listener": f"127.0.0.1:{DIGITS}"},
        {"log.retention.ms": DIGITS},
    ],
    ids=lambda texts: next(iter(texts)),
)
def test_thousands_of_digits_are_refused(texts: dict[str, str]) -> None:
    with pytest.raises(SettingError) as raised:
        BrokerSettings.parse(texts)
    assert len(str(raised.value)) < MAX_SHOWN_CHARS + 200


@settings(max_examples=200)
@given(st.sampled_from(sorted(settings_of(BrokerSettings))), st.text(max_size=40))
def test_any_text_is_accepted_or_refused(name: str, text: str) -> None:
    try:
        BrokerSettings.parse({name: text})
    except SettingError as error:
        assert error.name
