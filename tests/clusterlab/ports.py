"""Ranges of ports for test clusters that run side by side."""

from __future__ import annotations

import random
import socket

LOWEST, HIGHEST = 20_000, 28_000
RANGE_SIZE = 40
TRIES = 200


class PortRange:
    """RANGE_SIZE free ports from `base` on. The last port is held until `release()`, to mark the range as
    used. Ports are below 32768, because the kernel assigns higher ones to clients.
    """

    def __init__(self, step: int = RANGE_SIZE) -> None:
        chance = random.SystemRandom()
        for _ in range(TRIES):
            self.base = LOWEST + step * chance.randrange((HIGHEST - LOWEST) // step)
            self._sign = socket.socket()
            try:
                self._sign.bind(("127.0.0.1", self.base + step - 1))
                for port in range(self.base, self.base + step - 1):
                    with socket.socket() as probe:
                        probe.bind(("127.0.0.1", port))
            except OSError:
                self._sign.close()
                continue
            return
        raise RuntimeError(f"no free range of {step} ports between {LOWEST} and {HIGHEST}")

    def release(self) -> None:
        self._sign.close()
