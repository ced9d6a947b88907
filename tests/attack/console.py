"""The attack that fills the console's sessions, viewers and searches: one user with many sessions, while
another user logs in, opens pages, watches one and searches.
"""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from attack.attacks import NOT_FILLED, TARGET, Attack, Target
from attack.filling import ATTACK_S, CHART_LIMIT_MB, PASSWORD, USER, budget_metric, held
from attack.work import Job
from brokerlab.broker_process import START_TIMEOUT_S, tidelog_command
from brokerlab.clients import produce_values

PAGE_TIMEOUT_S: Final = 60.0
TOTALS: Final = {
    budget_metric("console_sessions"): 32,
    budget_metric("console_viewers"): 64,
    budget_metric("console_searches"): 3,
}
FILLED: Final = 0.6
"""The part of a limit that one client must fill at least: 2 of 3 searches. The last one is left to others."""
RECORDS: Final = 200_000
LOGIN_PAUSE_S: Final = 0.3


@contextlib.contextmanager
def console(address: str, bootstrap: str, directory: Path) -> Iterator[int]:
    """Runs a console with logins at an address, and yields its process id."""
    config = directory / "console.properties"
    config.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n")
    command = [*tidelog_command(), "console", "--login", "--listen", address]
    command += ["--bootstrap-server", bootstrap, "--command-config", str(config)]
    with (directory / "console.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/livez", timeout=5):
                break
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the console did not start:\n{(directory / 'console.log').read_text()}")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.kill()
        process.wait()


class Browser:
    """A browser of one user."""

    def __init__(self, address: str, user: str) -> None:
        self._address, self._user = address, user
        self._cookie = ""

    def jobs(self, topic: str) -> tuple[Job, ...]:
        """Returns jobs that log in, open a page, watch it until it has content, and search."""
        return (
            self.log_in,
            lambda: self.opens("/"),
            self.watches_once,
            lambda: self.opens(f"/topics/{topic}/records"),
        )

    def log_in(self) -> bool:
        """Logs in, which ends the earlier session of this browser."""
        form = urlencode({"user": self._user, "password": PASSWORD})
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Origin": f"http://{self._address}",
        }
        with self.asked("/login", form, headers) as answer:
            cookie = answer.headers.get("set-cookie", "")
            self._cookie = cookie.partition(";")[0] or self._cookie
            return answer.status == 303

    def opens(self, path: str) -> bool:
        with self.asked(path) as answer:
            return answer.status == 200 and bool(answer.read())

    def watches_once(self) -> bool:
        with self.watched() as answer:
            return answer.status == 200 and b"event" in answer.readline()

    @contextlib.contextmanager
    def watched(self) -> Iterator[http.client.HTTPResponse]:
        """Yields the answer with the live updates of a page."""
        with self.asked("/events/") as answer:
            yield answer

    @contextlib.contextmanager
    def asked(
        self, path: str, form: str | None = None, headers: Mapping[str, str] = {}
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self._address, timeout=PAGE_TIMEOUT_S)
        try:
            cookie = {"Cookie": self._cookie} if self._cookie else {}
            connection.request("GET" if form is None else "POST", path, form, {**headers, **cookie})
            yield connection.getresponse()
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()


def fill_console(target: Target) -> str:
    """Logs in, watches and searches more than the limits allow. Returns how full they got."""
    produce_values(target.broker.bootstrap, TARGET, (b"%0100d" % number for number in range(RECORDS)))
    address = target.console_address
    until = time.monotonic() + max(ATTACK_S * target.scale, 10) + 40 * LOGIN_PAUSE_S
    counts = dict.fromkeys(("logins", "refused logins", "searches"), 0)
    browser = Browser(address, USER)
    assert browser.log_in()

    def search() -> None:
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                counts["searches"] += browser.opens(f"/topics/{TARGET}/records?start=oldest&value=none")
            time.sleep(0.1)

    searchers = [threading.Thread(target=search) for _ in range(6)]
    for thread in searchers:
        thread.start()
    fullest: dict[str, float] = dict.fromkeys(TOTALS, 0.0)
    with contextlib.ExitStack() as stack:
        for _ in range(80):
            with contextlib.suppress(OSError):
                stack.enter_context(browser.watched())
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                is_in = Browser(address, USER).log_in()
                counts["logins" if is_in else "refused logins"] += 1
            shown = held(address, TOTALS)
            fullest = {name: max(value, shown[name]) for name, value in fullest.items()}
            time.sleep(LOGIN_PAUSE_S)
        for thread in searchers:
            thread.join()
    parts = ", ".join(
        f"{fullest[name]:,.0f} of {total} {each}"
        for (name, total), each in zip(TOTALS.items(), ("sessions", "viewers", "searches"), strict=True)
    )
    is_filled = all(fullest[name] >= FILLED * total for name, total in TOTALS.items())
    done = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    return f"{'' if is_filled else NOT_FILLED}{parts} held; {done}"


CONSOLE_ATTACK: Final = Attack(
    "console",
    "the console's sessions, viewers and searches by one user",
    fill_console,
    bound_mb=CHART_LIMIT_MB - 256,
    fills=True,
    has_console=True,
    least_p99_ms=150.0,  # pages share one process with the searches of users
)
