"""The common part of all tools: options, the connection, questions, files, and errors as one line.

`ToolCommand` reports an expected failure with the next step. `cluster_options` and `connect` reach a cluster.
`confirm` asks before a command deletes what can't be restored. `parse_partition_rows` reads the JSON files in
which Kafka's tools name partitions.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import click

from tidelog.cli.command_line import noted
from tidelog.cli.completion import ExistingName, NamesOf, group_names, known_names, topic_names
from tidelog.cli.output import begin_document, finish, format_option, is_terminal, note
from tidelog.client.cluster import Cluster
from tidelog.client.errors import (
    AdvertisedUnreachableError,
    BadAddressError,
    BrokerGoneError,
    ClientError,
    RecordTooLargeError,
    UnreachableError,
)
from tidelog.client.security import (
    COMMAND_CONFIG_VARIABLE,
    NO_SECURITY,
    ClientSecurity,
    SecurityConfigError,
    read_security,
)
from tidelog.model.errors import ErrorCode, KafkaError
from tidelog.model.topics import TopicPartition
from tidelog.process.command_help import DescribedCommand, LimitedFloat, LimitedInt, did_you_mean
from tidelog.settings.setting import INT_MAX

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE: Final = "TIDELOG_BOOTSTRAP_SERVER"
_BOOTSTRAP_KEY: Final = "tidelog.bootstrap.server"
_TIMEOUT_KEY: Final = "tidelog.request.timeout.ms"
_COMMAND_CONFIG_KEY: Final = "tidelog.command.config"
_ARGUMENT_KEY: Final = "tidelog.argument."
_OPTION_KEY: Final = "tidelog.option."
_WATCH_KEY: Final = "tidelog.watch"
LEAST_WATCH_INTERVAL_S: Final = 0.5
DEFAULT_TIMEOUT_MS: Final = 30_000

_NEXT_STEPS: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "'tidelog topic list' shows the existing topics",
    ErrorCode.UNKNOWN_TOPIC_ID: "'tidelog topic list' shows the existing topics",
    ErrorCode.TOPIC_ALREADY_EXISTS: "--if-not-exists accepts an existing topic",
    ErrorCode.INVALID_REPLICATION_FACTOR: "'tidelog cluster describe' shows the brokers",
    ErrorCode.INVALID_CONFIG: "'tidelog config describe --all' shows all settings and their values",
    # Batches of several records are split, so the batch that is too large contains one record.
    ErrorCode.MESSAGE_TOO_LARGE: "raise max.message.bytes with 'tidelog config alter --topic TOPIC', or send "
    "smaller records",
    ErrorCode.OFFSET_OUT_OF_RANGE: "'tidelog offsets' shows the existing offsets",
    ErrorCode.BROKER_NOT_AVAILABLE: "'tidelog cluster describe' shows the brokers",
    ErrorCode.RESOURCE_NOT_FOUND: "'tidelog user list' shows the existing users",
    ErrorCode.SECURITY_DISABLED: "set authorizer.class.name in the brokers' settings",
    ErrorCode.GROUP_ID_NOT_FOUND: "'tidelog group list' shows the existing groups",
    ErrorCode.NON_EMPTY_GROUP: "stop its members first; 'tidelog group describe --members' shows them",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "'tidelog acl list' shows the ACLs",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "'tidelog acl list' shows the ACLs",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "'tidelog acl list' shows the ACLs",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "'tidelog acl list' shows the ACLs",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "'tidelog transactions list' shows the existing ones",
    ErrorCode.REQUEST_TIMED_OUT: "'tidelog cluster describe' shows the brokers that run",
    ErrorCode.NOT_ENOUGH_REPLICAS: "'tidelog topic describe' shows which replicas are in sync",
}
_MISSING: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "topic",
    ErrorCode.GROUP_ID_NOT_FOUND: "group",
}
_NAMES_OF: Final[Mapping[str, NamesOf]] = {"TOPIC": topic_names, "GROUP": group_names}
"""The names that complete a parameter, by its metavar."""
_REACH_STEP: Final = (
    "check that a broker is running there ('tidelog dev' starts one), "
    "or name another broker with --bootstrap-server"
)
_ADVERTISED_STEP: Final = (
    "if the broker runs, set its advertised.listeners to an address that this machine can reach"
)
_GONE_STEP: Final = "'tidelog cluster describe' shows the brokers that run"

F = TypeVar("F", bound=Callable[..., object])
INT16_MAX: Final = 2**15 - 1
"""The greatest number of an int16 of Kafka's protocol. Settings have INT_MAX and LONG_MAX for longer ones."""
_YES_KEY: Final = "tidelog.yes"
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""The size of the longest file that is read."""
_VERSION: Final = 1


class ToolError(Exception):
    """The reason why a tool can't do its task: one sentence, with the next step."""


class ToolCommand(DescribedCommand):
    """A subcommand whose expected failures become one line on standard error, with exit code 1.

    It has the option --format, unless it has another one of that name or `prints_data` is false. With
    `is_watchable` it has the option --watch, which runs it again and again.
    """

    sleep: Callable[[float], None] = staticmethod(time.sleep)
    """Waits for seconds between two runs; tests replace it."""

    def __init__(
        self,
        *args: Any,  # of click.Command
        prints_data: bool = True,
        is_watchable: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        if is_watchable:
            self.params.append(_watch_option())
        for parameter in self.params:
            names_of = _NAMES_OF.get((parameter.metavar or "").strip("[]."))
            if names_of is not None and parameter.type is click.STRING:
                parameter.type = ExistingName(names_of, _cluster_of)
        if prints_data and not any("--format" in parameter.opts for parameter in self.params):
            self.params.append(format_option())

    def invoke(self, ctx: click.Context) -> object:
        interval_s = ctx.meta.get(_WATCH_KEY)
        if interval_s is not None:
            self._watch(ctx, interval_s)
            return None
        try:
            result = super().invoke(ctx)
        except (ToolError, ClientError, KafkaError) as error:
            finish(has_failed=True)
            fail(sentence_of(error, _similar(ctx, error)))
        except KeyboardInterrupt:
            finish(has_failed=True)
            raise
        finish()
        return result

    def _watch(self, ctx: click.Context, interval_s: float) -> None:
        """Runs the command until Ctrl-C. A failure, such as a broker that is down, does not end it."""
        try:
            while True:
                if is_terminal():
                    click.clear()
                try:
                    super().invoke(ctx)
                    finish()
                except (ToolError, ClientError, KafkaError) as error:
                    finish(has_failed=True)
                    note(f"tidelog: {sentence_of(error)}")
                begin_document()
                self.sleep(interval_s)
        except KeyboardInterrupt:
            return


def _watch_option() -> click.Option:
    return click.Option(
        ["--watch"],
        type=LimitedFloat(min=LEAST_WATCH_INTERVAL_S),
        metavar="SECONDS",
        expose_value=False,
        callback=noted(_WATCH_KEY),
        help="Repeat the command every so many seconds, until Ctrl-C.",
    )


def _cluster_of(context: click.Context) -> tuple[str, ClientSecurity] | None:
    """Returns the cluster of an incomplete command line, or None if --command-config is wrong."""
    bootstrap = context.meta.get(_BOOTSTRAP_KEY) or os.environ.get(BOOTSTRAP_VARIABLE)
    try:
        with context.scope(cleanup=False):
            return bootstrap or DEFAULT_BOOTSTRAP, command_security()
    except ToolError:
        return None


def _similar(context: click.Context, error: Exception) -> str:
    """Returns a suggestion if the error is that the topic or group in its message does not exist."""
    if not isinstance(error, KafkaError) or _BOOTSTRAP_KEY not in context.meta:
        return ""
    kind = _MISSING.get(error.code)
    named = kind and re.search(rf"{kind}(?: matches)? '([^']+)'", str(error))
    if not kind or not named:
        return ""
    names = known_names(context.meta[_BOOTSTRAP_KEY], command_security(), _NAMES_OF[kind.upper()])
    return did_you_mean(named[1], names)


def sentence_of(error: ToolError | ClientError | KafkaError, suggestion: str = "") -> str:
    """Returns one line that says what happened and, if known, what to do next.

    A suggestion of `did_you_mean` takes the place of the next step.
    """
    text = " ".join(str(error).split()).rstrip(".")
    step: str | None = None
    if isinstance(error, KafkaError):
        step = _NEXT_STEPS.get(error.code)
        if isinstance(error, RecordTooLargeError) and error.producer_setting:
            step = f"send smaller records, or use a producer with a larger {error.producer_setting}"
    elif isinstance(error, AdvertisedUnreachableError):
        step = _ADVERTISED_STEP
    elif isinstance(error, BrokerGoneError):
        step = _GONE_STEP
    elif isinstance(error, UnreachableError):
        step = _REACH_STEP
    elif isinstance(error, BadAddressError):
        text = f"--bootstrap-server: {text}"
    if suggestion:
        return f"{text}.{suggestion}"
    return f"{text}; {step}" if step else text


def fail(reason: str) -> NoReturn:
    note(f"tidelog: {reason}")
    raise click.exceptions.Exit(1)


def cluster_options(command: F) -> F:
    """Adds --bootstrap-server, --command-config and --request-timeout-ms, which `connect` reads."""
    command = click.option(
        "--command-config",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar=COMMAND_CONFIG_VARIABLE,
        show_envvar=True,
        metavar="FILE",
        expose_value=False,
        callback=noted(_COMMAND_CONFIG_KEY),
        help="Properties of Kafka's clients for TLS and SASL (security.protocol, ...).",
    )(command)
    command = click.option(
        "--request-timeout-ms",
        type=ProtocolInt(INT_MAX, min=1),
        default=DEFAULT_TIMEOUT_MS,
        show_default=True,
        expose_value=False,
        callback=noted(_TIMEOUT_KEY),
        help="Milliseconds to wait for a broker's response.",
    )(command)
    return click.option(
        "--bootstrap-server",
        "-b",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        envvar=BOOTSTRAP_VARIABLE,
        show_envvar=True,
        metavar="HOST:PORT[,...]",
        expose_value=False,
        callback=noted(_BOOTSTRAP_KEY),
        help="One or more brokers to connect to.",
    )(command)


def connect() -> Cluster:
    """Connects to the cluster that the running command's options name. Raises ClientError, ToolError."""
    return Cluster(
        command_bootstrap(),
        client_id="tidelog-cli",
        timeout_s=command_timeout_ms() / 1000,
        security=command_security(),
    )


def command_bootstrap() -> str:
    """Returns the running command's --bootstrap-server."""
    found: str = click.get_current_context().meta[_BOOTSTRAP_KEY]
    return found


def command_timeout_ms() -> int:
    """Returns the running command's --request-timeout-ms."""
    found: int = click.get_current_context().meta[_TIMEOUT_KEY]
    return found


def command_config() -> Path | None:
    """Returns the file of the running command's --command-config, or None without it."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_COMMAND_CONFIG_KEY)


def command_security() -> ClientSecurity:
    """Returns the security that --command-config of the running command describes. Raises ToolError."""
    path = command_config()
    if path is None:
        return NO_SECURITY
    try:
        return read_security(path)
    except SecurityConfigError as error:
        raise ToolError(f"--command-config: {error}") from None


def named_option(kind: str, what: str, *, is_repeatable: bool) -> Callable[[F], F]:
    """Returns a decorator that adds names as arguments and as --KIND, as in Kafka's tools. `given_names` and
    `given_name` read them.
    """
    metavar = kind.upper().replace("-", "_")

    def add(command: F) -> F:
        command = click.option(
            f"--{kind}",
            multiple=is_repeatable,
            metavar=metavar,
            expose_value=False,
            callback=noted(_OPTION_KEY + kind),
            help=f"{what}, instead of the argument" + ("s. Repeatable." if is_repeatable else "."),
        )(command)
        return click.argument(
            f"{metavar.lower()}_argument",
            metavar=f"[{metavar}]..." if is_repeatable else f"[{metavar}]",
            nargs=-1 if is_repeatable else 1,
            required=False,
            expose_value=False,
            callback=noted(_ARGUMENT_KEY + kind),
        )(command)

    return add


def given_names(kind: str) -> tuple[str, ...]:
    """Returns the names of a repeatable `named_option`."""
    meta = click.get_current_context().meta
    return (*meta[_ARGUMENT_KEY + kind], *meta[_OPTION_KEY + kind])


def given_name(kind: str) -> str | None:
    """Returns the name of a `named_option`, or None. Raises click.UsageError if two are given."""
    meta = click.get_current_context().meta
    argument: str | None = meta[_ARGUMENT_KEY + kind]
    option: str | None = meta[_OPTION_KEY + kind]
    if argument and option and argument != option:
        raise click.UsageError(f"Give only one {kind.replace('-', ' ')}: '{argument}' or '{option}'.")
    return argument or option


topic_option: Final = named_option("topic", "The topic", is_repeatable=False)
topic_options: Final = named_option("topic", "A topic", is_repeatable=True)
group_options: Final = named_option("group", "A group", is_repeatable=True)


def chosen_topic() -> str:
    """Returns the topic of the running command's `topic_option`. Raises click.UsageError."""
    chosen = given_name("topic")
    if not chosen:
        raise click.UsageError("Give the topic's name, or --topic TOPIC.")
    return chosen


def chosen_groups(*, all_groups: bool | None = None) -> list[str]:
    """Returns the groups that were named, which are none with --all-groups. Raises click.UsageError.

    `all_groups` is None if the command has no option --all-groups.
    """
    chosen = list(dict.fromkeys(given_names("group")))
    if all_groups and chosen:
        raise click.UsageError("Give either groups or --all-groups.")
    if not all_groups and not chosen:
        raise click.UsageError("Give a group." if all_groups is None else "Give a group, or --all-groups.")
    return chosen


def parse_assignments(option: str, assignments: tuple[str, ...]) -> dict[str, str]:
    """Parses `name=value` pairs. Raises ToolError that names the pair that is invalid, or that gives a name
    another value than an earlier pair.
    """
    pairs: dict[str, str] = {}
    for name, value in parse_pairs(option, assignments):
        if pairs.setdefault(name, value.strip()) != value.strip():
            raise ToolError(f"{option} {name}={value}: another value of {name} is given, too")
    return pairs


def parse_pairs(option: str, assignments: tuple[str, ...]) -> list[tuple[str, str]]:
    """Parses `name=value` pairs. Raises ToolError that names the invalid pair."""
    pairs: list[tuple[str, str]] = []
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip():
            raise ToolError(f"{option} {assignment}: expected NAME=VALUE")
        pairs.append((name.strip(), value))
    return pairs


class ProtocolInt(LimitedInt):
    """An integer from `min` to `limit`, which no field could exceed. The help shows only `min`."""

    def __init__(self, limit: int, *, min: int) -> None:  # noqa: A002 (as click.IntRange)
        super().__init__(min=min)
        self.limit = limit

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int:
        number: int = super().convert(value, parameter, context)
        if number > self.limit:
            self.fail(f"{number} is more than {self.limit}.", parameter, context)
        return number


def asks_first(command: F) -> F:
    """Adds --yes, which `confirm` reads."""
    return click.option(
        "--yes",
        is_flag=True,
        expose_value=False,
        callback=noted(_YES_KEY),
        help="Do not ask first. Without a terminal, nothing is asked.",
    )(command)


def confirm(question: str, *, refusal: str = "") -> None:
    """Asks the question on a terminal, unless --yes is given. Raises ToolError if the answer is no.

    Without a terminal there is no question, so that scripts do not hang. With `refusal`, the command then
    needs --yes, and ToolError says so.
    """
    if click.get_current_context().meta.get(_YES_KEY):
        return
    if not is_interactive():
        if refusal:
            raise ToolError(f"{refusal}; nothing was changed. --yes does it nevertheless.")
        return
    if not click.confirm(question, err=True):
        raise ToolError("nothing was changed, because the answer was not yes")


def is_interactive() -> bool:
    """Returns whether somebody can be asked: input and messages go to a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def read_text_file(option: str, path: Path) -> str:
    """Raises ToolError if the file can't be read."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ToolError(f"{option} {path}: the file is longer than {MAX_FILE_BYTES} bytes")
        return path.read_text("utf-8")
    except OSError as error:
        raise ToolError(f"{option} {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ToolError(f"{option} {path}: the file is not UTF-8 text") from None


def write_text_file(path: Path, text: str) -> None:
    """Writes the file that --output names. Raises ToolError if it can't be written."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ToolError(f"--output {path}: {error.strerror}") from error


def parse_partition_rows(
    text: str, source: str, numbers: tuple[str, ...] = ()
) -> dict[TopicPartition, Mapping[str, Any]]:  # `Any`: parsed JSON
    """Returns the rows of `{"version": 1, "partitions": [{"topic": ..., "partition": ...}]}`.

    Each row has the integers that `numbers` names. `source` names the file in errors. Raises ToolError.
    """
    rows: dict[TopicPartition, Mapping[str, Any]] = {}
    for row in parse_rows(text, source, "partitions"):
        place = TopicPartition(_text(row, "topic", source), _number(row, "partition", source))
        for name in numbers:
            _number(row, name, source)
        if place in rows:
            raise ToolError(f"{source} contains {place} twice")
        rows[place] = row
    if not rows:
        raise ToolError(f"{source} contains no partitions")
    return rows


def parse_rows(text: str, source: str, key: str) -> Iterator[Mapping[str, Any]]:
    """Yields the objects of the list `key` in a file of version 1. Raises ToolError."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"{source} is not JSON: {error}") from None
    rows = document.get(key) if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise ToolError(f'{source} has no list "{key}"')
    if document.get("version", _VERSION) != _VERSION:
        raise ToolError(f"{source} has version {document['version']}, but only version 1 is known")
    for row in rows:
        if not isinstance(row, dict):
            raise ToolError(f'{source}: {json.dumps(row)} in "{key}" is not an object')
        yield row


def _text(row: Mapping[str, Any], name: str, source: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value:
        raise ToolError(f'{source}: {json.dumps(row)} has no text "{name}"')
    return value


def _number(row: Mapping[str, Any], name: str, source: str) -> int:
    value = row.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ToolError(f'{source}: {json.dumps(row)} has no number "{name}"')
    return value
