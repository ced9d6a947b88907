"""Samples while nobody looks: they go on after failures and end with the console."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from tidelog.client.errors import UnreachableError
from tidelog.console.cluster_access import HealthSampler

TIMEOUT_S = 30.0


def test_it_samples_again_after_a_failure_and_ends() -> None:
    intervals: list[int] = []
    is_done = threading.Event()

    def sample(interval_ms: int) -> None:
        intervals.append(interval_ms)
        if len(intervals) == 3:
            is_done.set()
        raise UnreachableError("no broker answers")

    with ThreadPoolExecutor(1) as worker:
        sampler = HealthSampler(sample, worker, 1)
        sampler.start()
        assert is_done.wait(TIMEOUT_S)
        sampler.close()
        count = len(intervals)
        assert not any(thread.name == "console-health" for thread in threading.enumerate())
    assert intervals == [1] * count


def test_closing_does_not_wait_for_the_interval() -> None:
    began = threading.Event()
    with ThreadPoolExecutor(1) as worker:
        sampler = HealthSampler(lambda interval_ms: began.set(), worker, 3_600_000)
        sampler.start()
        assert began.wait(TIMEOUT_S)
        sampler.close()


def test_one_that_never_started_closes() -> None:
    with ThreadPoolExecutor(1) as worker:
        HealthSampler(lambda interval_ms: None, worker).close()
