"""The log of a cluster in a test: warnings and errors go to the standard library's loggers `tidelog.*`, and
pytest shows them with the test that fails.
"""

from __future__ import annotations

import logging

import structlog


def log_quietly() -> None:
    """Sends the log of tidelog to the standard library, unless the program has configured structlog."""
    if structlog.is_configured():
        return
    logging.getLogger("tidelog").addHandler(logging.NullHandler())  # otherwise the last resort prints
    structlog.configure(
        processors=[structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
