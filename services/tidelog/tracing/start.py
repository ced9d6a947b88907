"""Starts tracing if the settings ask for it, and only then imports OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidelog.process.build import install_command
from tidelog.settings.setting import SettingError

if TYPE_CHECKING:
    from tidelog.settings.cluster_settings import TracingSettings
    from tidelog.tracing.tracer import Tracing

_ENDPOINT: Final = "tidelog.tracing.otlp.endpoint"


def start_tracing(settings: TracingSettings, service: str, node_id: int) -> Tracing | None:
    """Returns the tracing of a process, or None if the settings name no collector.

    The caller closes it. Raises SettingError if OpenTelemetry is not installed, and OSError if the file of
    the collector's certificate authority cannot be read.
    """
    if not settings.tidelog_tracing_otlp_endpoint:
        return None
    try:
        from tidelog.tracing.tracer import tracing_to_collector
    except ImportError as error:
        reason = f"{_ENDPOINT}: OpenTelemetry is not installed ({error}): {install_command('tracing')}"
        raise SettingError(_ENDPOINT, reason) from error
    return tracing_to_collector(settings, service, node_id)
