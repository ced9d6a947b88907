"""Every setting that tidelog describes has code that reads it, and a setting that can be changed while the
broker runs has code that reads it again.

The readers are found in the source: attributes of settings (`settings.log_retention_ms`), Kafka's names in
calls (`value_of("ssl.protocol")`), and properties and functions of `tidelog.settings` that other code uses.
Checks of values are no readers, except the rules in RULES, which are the effect of the settings they read.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import tidelog
from tidelog.broker.cluster.view import CurrentSettings
from tidelog.rpc.broker_commands import DEFAULT_BROKER_ENTITY
from tidelog.settings.broker_settings import BROKER_SETTINGS, BrokerSettings
from tidelog.settings.group_settings import BOUNDS, GROUP_SETTINGS, broker_synonym
from tidelog.settings.other_kafka_settings import problem_of_value
from tidelog.settings.setting import Setting, SettingType, UpdateMode
from tidelog.settings.topic_settings import BROKER_SYNONYMS, TOPIC_SETTINGS, TopicSettings

SERVICES = Path(tidelog.__file__).parent
SETTINGS = "settings"
NOT_SERVICES = ("client", "pipeline", "wire", SETTINGS)
"""The packages whose attributes and texts do not concern the settings of a running service."""

# What settings are called where they are read: `settings`, `self._settings.broker`, `self._current.broker`.
RECEIVER = re.compile(r"(?:^|[._])(?:settings|broker|rules|effective|topic)$")
RULES = {"_check_consumer_groups", "_agree_on_node_id"}
NO_READERS = re.compile(r"_?check_.*|validate_.*|describe_.*|parse|__post_init__|_agree_on_.*")
AT_START = re.compile(r"__init__|start|open|_open|bind|serve|begin|create")
"""The functions that run once. A setting that only they read cannot change while the broker runs."""

# Settings that code finds by their names, and the module that does so.
BY_NAME = {
    "unclean.leader.election.enable": "controller/core/decision.py",
    "min.insync.replicas": "controller/core/decision.py",
    "offsets.topic.replication.factor": "broker/coordination/internal_topics.py",
    "share.coordinator.state.topic.replication.factor": "broker/coordination/internal_topics.py",
    "transaction.state.log.replication.factor": "broker/coordination/internal_topics.py",
}


DEFAULTS_OF_TOPICS = {name for names in BROKER_SYNONYMS.values() for name in names}
CHANGED_BY_TYPE = {
    SettingType.BOOLEAN: "true",
    SettingType.INT: "5",
    SettingType.LONG: "5",
    SettingType.DOUBLE: "0.25",
    SettingType.STRING: "lz4",
    SettingType.LIST: "compact",
}
CHANGED = {"log.message.timestamp.type": "LogAppendTime", "log.segment.bytes": "2000000"}
"""Values that are no defaults, for the test of changed settings."""


class Reader(NamedTuple):
    """A function that reads settings, and the module that it is in."""

    module: str
    function: str

    def __str__(self) -> str:
        return f"{self.module}:{self.function}"


class Source(NamedTuple):
    """The names in one function: the attributes that it reads, with their objects, and texts."""

    attributes: Mapping[str, set[str]]
    words: set[str]


def functions_of(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yields each function and method with its qualified name, and the module itself without them."""

    def walk(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield ".".join((*names, child.name)), child
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, (*names, child.name))
            else:
                yield from walk(child, names)

    yield from walk(tree, ())


def read_source(function: ast.AST) -> Source:
    attributes = defaultdict(set)
    words = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            attributes[node.attr].add(ast.unparse(node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.add(node.value)
        elif isinstance(node, ast.Name):
            words.add(node.id)
    return Source(attributes, words)


def texts_of_constants(tree: ast.Module) -> dict[str, str]:
    """Returns the texts that the module's own names stand for."""
    found = {}
    for node in tree.body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign):
            target = node.targets[0]
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            found[target.id] = value.value
    return found


@cache
def sources() -> Mapping[Reader, Source]:
    found = {}
    for path in SERVICES.rglob("*.py"):
        module = path.relative_to(SERVICES).as_posix()
        tree = ast.parse(path.read_text())
        constants = texts_of_constants(tree)
        for name, function in functions_of(tree):
            source = found[Reader(module, name)] = read_source(function)
            source.words.update(constants[word] for word in tuple(source.words) if word in constants)
    return found


def is_service(reader: Reader) -> bool:
    return reader.module.split("/")[0] not in NOT_SERVICES


@cache
def shared_functions() -> Mapping[Reader, Source]:
    """Returns the functions of `tidelog.settings` that provide settings to other code, with the first module
    outside that uses each of them, directly or through other functions.
    """
    inside = {
        reader: source
        for reader, source in sources().items()
        if reader.module.startswith(SETTINGS) and not NO_READERS.fullmatch(reader.function.rpartition(".")[2])
    }
    used: dict[Reader, Source] = {}
    outside = [source for reader, source in sources().items() if is_service(reader)]
    while True:
        more = {
            reader: source
            for reader, source in inside.items()
            if reader not in used and is_used(reader.function.rpartition(".")[2], outside)
        }
        if not more:
            return used
        used |= more
        outside = list(more.values())


def is_used(name: str, by: list[Source]) -> bool:
    return any(name in source.words or name in source.attributes for source in by)


def is_spelt(name: str, attribute: str, words: set[str]) -> bool:
    """Whether a function has a setting's name in one text, or in two that it joins."""
    return attribute in words or any(
        name == word or (word and name.startswith(word) and name[len(word) :] in words) for word in words
    )


def readers(name: str, attribute: str) -> set[Reader]:
    """Returns the code that reads a setting outside the settings' own tables and checks."""
    found = set()
    for reader, source in sources().items():
        if is_service(reader):
            objects = source.attributes.get(attribute, ())
            if any(RECEIVER.search(receiver) for receiver in objects):
                found.add(reader)
        elif (reader in shared_functions() or reader.function in RULES) and (
            attribute in source.attributes or is_spelt(name, attribute, source.words)
        ):
            found.add(reader)
    if name in BY_NAME:
        found.add(Reader(BY_NAME[name], "by name"))
    return found


def readers_of_topic_setting(name: str) -> set[Reader]:
    return readers(name, TOPIC_SETTINGS[name].attribute)


def readers_of_broker_setting(name: str) -> set[Reader]:
    found = readers(name, BROKER_SETTINGS[name].attribute)
    for topic_setting, synonyms in BROKER_SYNONYMS.items():
        if name in synonyms:
            found |= readers_of_topic_setting(topic_setting)
    for group_setting in GROUP_SETTINGS:
        if name in bounds_of_groups(group_setting):
            found |= readers_of_group_setting(group_setting)
    return found


def bounds_of_groups(group_setting: str) -> set[str]:
    """Returns the broker settings that give a setting of groups its default and its bounds."""
    synonym = broker_synonym(group_setting)
    if synonym is None:
        return set()
    return {synonym, *(bound for bound in BOUNDS[group_setting] if bound is not None)}


def readers_of_group_setting(name: str) -> set[Reader]:
    attribute = name.replace(".", "_")
    return {
        reader
        for reader, source in sources().items()
        if is_service(reader) and attribute in source.attributes
    }


def has_one_value(name: str, definition: Setting) -> bool:
    """Whether every value but the default is refused."""
    other = not definition.default if isinstance(definition.default, bool) else 12345
    return problem_of_value(name, other) is not None and problem_of_value(name, definition.default) is None


@pytest.mark.parametrize("name", BROKER_SETTINGS)
def test_a_broker_setting_is_read(name: str) -> None:
    assert readers_of_broker_setting(name) or has_one_value(name, BROKER_SETTINGS[name]), (
        f"no code reads {name}: give it an effect, or move it to other_kafka_settings.py"
    )


@pytest.mark.parametrize("name", GROUP_SETTINGS)
def test_a_setting_of_groups_is_read(name: str) -> None:
    assert readers_of_group_setting(name), f"no code reads {name}"


@pytest.mark.parametrize("name", TOPIC_SETTINGS)
def test_a_topic_setting_is_read(name: str) -> None:
    assert readers_of_topic_setting(name) or has_one_value(name, TOPIC_SETTINGS[name]), (
        f"no code reads {name}: give it an effect, or refuse its values"
    )


def attribute_of(settings: TopicSettings, name: str) -> object:
    return getattr(settings, TOPIC_SETTINGS[name].attribute)


def changeable() -> list[str]:
    names = []
    for name, definition in BROKER_SETTINGS.items():
        if definition.update_mode is not UpdateMode.READ_ONLY and not has_one_value(name, definition):
            names.append(name)
    return names


@pytest.mark.parametrize("name", changeable())
def test_a_setting_that_can_change_is_read_again(name: str) -> None:
    again = [
        reader
        for reader in readers_of_broker_setting(name)
        if not AT_START.fullmatch(reader.function.rpartition(".")[2])
    ]
    assert again, f"{name} is read at the start only, so its update mode must be READ_ONLY"


def test_a_setting_without_a_reader_is_noticed() -> None:
    assert not readers("no.such.setting", "no_such_setting")
    assert readers("log.cleaner.threads", "log_cleaner_threads")
    checks = {str(reader) for reader in readers("broker.session.timeout.ms", "broker_session_timeout_ms")}
    assert not any("check_settings_together" in reader for reader in checks)


def test_modules_that_find_settings_by_name_do_so() -> None:
    for name, module in BY_NAME.items():
        assert f'"{name}"' in (SERVICES / module).read_text()


@pytest.mark.parametrize("name", [name for name in changeable() if name in DEFAULTS_OF_TOPICS])
def test_a_changed_default_reaches_the_topics(name: str) -> None:
    current = CurrentSettings(BrokerSettings())
    before = current.topic({})
    value = CHANGED.get(name, CHANGED_BY_TYPE[BROKER_SETTINGS[name].type])
    current.apply({DEFAULT_BROKER_ENTITY: {name: value}})
    changed = [
        field
        for field in TOPIC_SETTINGS
        if attribute_of(current.topic({}), field) != attribute_of(before, field)
    ]
    assert changed == [topic for topic, names in BROKER_SYNONYMS.items() if name in names]
