"""HTTP requests that only the named server may answer: they carry a secret, or their answer is trusted."""

from __future__ import annotations

import ssl
import urllib.request
from typing import Any


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect becomes an HTTPError. urllib would send the request's credentials along, also to http."""

    def redirect_request(self, *_: Any) -> None:  # of urllib, which passes six arguments
        return None


def open_directly(
    request: urllib.request.Request | str, timeout_s: float, context: ssl.SSLContext | None = None
) -> Any:  # what urllib returns: a response, which is a context manager
    """Sends a request and follows no redirect. Raises OSError, and its subclass HTTPError for a redirect."""
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*handlers).open(request, timeout=timeout_s)
