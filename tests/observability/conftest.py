"""One watched cluster for all tests that look at it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from observabilitylab.prometheus import is_installed
from observabilitylab.watched_cluster import WatchedCluster, watched_cluster


@pytest.fixture(scope="package")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedCluster]:
    if not is_installed():
        pytest.skip("no prometheus: apt-get install prometheus")
    with watched_cluster(tmp_path_factory.mktemp("observability")) as found:
        yield found
