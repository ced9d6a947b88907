"""The cluster that Prometheus watches, which all tests of this directory share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kuberneteslab.watched_cluster import WatchedCluster


@pytest.fixture(scope="package")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedCluster]:
    # These modules need the extra `lab`. Without it, pytest skips the tests here but still loads this file.
    from kuberneteslab.prometheus import is_installed
    from kuberneteslab.watched_cluster import watched_cluster

    if not is_installed():
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    with watched_cluster(tmp_path_factory.mktemp("observability")) as found:
        yield found
