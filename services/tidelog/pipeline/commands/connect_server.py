"""`tidelog pipeline connect-server`."""

from __future__ import annotations

import os
import sys

import click

from tidelog.model.brokers import host_and_port
from tidelog.pipeline.session import DEFAULT_CONNECT_PORT, DEFAULT_MASTER, server_command
from tidelog.process.command_help import DescribedCommand


@click.command("connect-server", cls=DescribedCommand, examples=("tidelog pipeline connect-server",))
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=DEFAULT_CONNECT_PORT, show_default=True, type=click.IntRange(1, 65535))
@click.option("--master", default=DEFAULT_MASTER, show_default=True, help="Of Spark.")
@click.option("--memory", default="2g", show_default=True, help="Of its Java.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; repeatable.")
def command(host: str, port: int, master: str, memory: str, settings: tuple[str, ...]) -> None:
    """Serve Spark Connect to jobs on other machines until stopped.

    Jobs run with SPARK_REMOTE=sc://HOST:PORT. The server does not authenticate clients: make sure that only
    your own jobs can reach it.
    """
    pairs = {name: value for name, _, value in (text.partition("=") for text in settings)}
    arguments = server_command(host, port, master=master, memory=memory, settings=pairs)
    # Functions of the jobs run in this Python, with tidelog's modules.
    environment = {"PYSPARK_PYTHON": sys.executable, **os.environ}
    click.echo(f"serving Spark Connect: SPARK_REMOTE=sc://{host_and_port(host, port)}", err=True)
    os.execve(arguments[0], arguments, environment)
