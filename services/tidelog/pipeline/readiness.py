"""Checks what a job needs before it starts Spark, whose start takes long and hides the cause of a failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError
from tidelog.client.security import parse_security
from tidelog.pipeline.archive.survey import topic_ids
from tidelog.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from tidelog.pipeline.archive.spec import ArchiveSpec

ANSWER_TIMEOUT_S: Final = 10.0


def check_brokers(bootstrap: str, client_settings: Mapping[str, str]) -> None:
    """Raises PipelineError unless a broker answers."""
    try:
        with Cluster(
            bootstrap, timeout_s=ANSWER_TIMEOUT_S, security=parse_security(client_settings)
        ) as cluster:
            cluster.describe()
    except ClientError as error:
        raise PipelineError(
            f"{error}; start the brokers that hold the log, or name them with --bootstrap-server"
        ) from error


def check_topics(spec: ArchiveSpec) -> None:
    """Checks that brokers answer and that one of the archive's topics exists.

    An archive with an interval waits for both, so nothing is checked for it. Raises PipelineError.
    """
    if spec.interval_ms is not None:
        return
    check_brokers(spec.bootstrap, spec.client_settings)
    found = topic_ids(replace(spec, cluster_timeout_s=ANSWER_TIMEOUT_S))
    if spec.topics and not found:
        raise PipelineError(
            f"the brokers at {spec.bootstrap} have no topic {' or '.join(spec.topics)}; "
            "'tidelog topic list' shows the existing topics"
        )
