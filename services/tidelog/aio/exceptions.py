"""The exceptions of the clients, for applications: `from tidelog.aio.exceptions import StaleMemberError`.

They are those of `tidelog.client.exceptions`.
"""

from __future__ import annotations

from tidelog.client.exceptions import *  # noqa: F403
from tidelog.client.exceptions import __all__ as __all__
