"""`tidelog pipeline jars` and `connect-server`, and the Spark session of other subcommands."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import click

from tidelog.client.security import COMMAND_CONFIG_VARIABLE, SecurityConfigError, environment_properties
from tidelog.model.brokers import host_and_port
from tidelog.pipeline import session
from tidelog.pipeline.commands.options import F, Options, pairs
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.session import session_jars
from tidelog.process.command_help import DescribedCommand, OutputFormat, output_format, with_format

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def with_spark(function: F) -> F:
    """Adds --master and --set."""
    function = click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; repeatable."
    )(function)
    return click.option("--master", help="Spark's master; default: local[*], or the one of spark-submit.")(
        function
    )


def with_client_settings(function: F) -> F:
    """Adds --client-set."""
    return click.option(
        "--client-set",
        multiple=True,
        metavar="KEY=VALUE",
        help="A setting of Spark's Kafka clients; repeatable.",
    )(function)


def client_settings_of(texts: tuple[str, ...]) -> dict[str, str]:
    """Returns the settings of Kafka clients: TLS and SASL from the file in TIDELOG_COMMAND_CONFIG, then
    --client-set. Raises PipelineError.
    """
    try:
        found = environment_properties()
    except SecurityConfigError as error:
        raise PipelineError(f"{COMMAND_CONFIG_VARIABLE}: {error}") from None
    return found | pairs(texts, "--client-set")


def start_spark(name: str, options: Options) -> SparkSession:
    """Starts Spark with the options of `with_spark`. Raises PipelineError. An embedded Spark logs nothing,
    because the command prints each error as one sentence.
    """
    master: str | None = options["master"]
    spark = session.spark_session(name, master=master, settings=pairs(options["settings"], "--set"))
    if not session.is_remote(spark) and (master is None or master.startswith("local")):
        spark.sparkContext.setLogLevel("OFF")
    return spark


@click.command("jars", cls=DescribedCommand, examples=("tidelog pipeline jars",))
@with_format
def jars() -> None:
    """Fetch the JARs that Spark sessions need, once, and list them."""
    found = session_jars()
    if output_format() is OutputFormat.JSON:
        click.echo(json.dumps([str(jar) for jar in found], indent=2))
        return
    for jar in found:
        click.echo(jar)


@click.command("connect-server", cls=DescribedCommand, examples=("tidelog pipeline connect-server",))
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option(
    "--port", default=session.DEFAULT_CONNECT_PORT, show_default=True, type=click.IntRange(1, 65535)
)
@click.option("--master", default=session.DEFAULT_MASTER, show_default=True, help="Of Spark.")
@click.option("--memory", default="2g", show_default=True, help="Of its Java.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; repeatable.")
def connect_server(host: str, port: int, master: str, memory: str, settings: tuple[str, ...]) -> None:
    """Serve Spark Connect to jobs on other machines until stopped.

    Jobs run with SPARK_REMOTE=sc://HOST:PORT. The server does not authenticate clients: make sure that only
    your own jobs can reach it.
    """
    chosen = pairs(settings, "--set")
    arguments = session.server_command(host, port, master=master, memory=memory, settings=chosen)
    # Functions of the jobs run in this Python, with tidelog's modules.
    environment = {"PYSPARK_PYTHON": sys.executable, **os.environ}
    click.echo(f"serving Spark Connect: SPARK_REMOTE=sc://{host_and_port(host, port)}", err=True)
    os.execve(arguments[0], arguments, environment)
