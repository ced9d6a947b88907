"""The checker of chaos runs: a sound history passes, and it names exactly the planted anomalies."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chaoslab import checker
from chaoslab import history as of_runs
from chaoslab.checker import judge
from chaoslab.history import History
from chaoslab.planted import COPY, GROUP, LOG, PLANTED, commit, poll, position, sound, without
from chaoslab.share_checks import SHARE_KINDS
from chaoslab.spark_checker import __main__ as spark_checker
from clusterlab import history as of_clusters


def test_a_sound_history_passes() -> None:
    found = judge(sound())
    assert found.is_sound, str(found)
    assert found.counts["acknowledged"] == 5 + 2 + 6


def test_a_history_file_gives_the_history_back(tmp_path: Path) -> None:
    sound().save(tmp_path / "h.gz")
    assert History.load(tmp_path / "h.gz") == sound()


def test_outcomes_of_clusterlab_have_the_same_meaning() -> None:
    for name in ("ACKNOWLEDGED", "UNKNOWN", "NO_PLACE"):
        assert getattr(of_clusters, name) == getattr(of_runs, name)


@pytest.mark.parametrize(("plant", "kind"), PLANTED)
def test_a_planted_anomaly_is_named(plant: Callable[[History], None], kind: str) -> None:
    history = sound()
    plant(history)
    assert set(judge(history).kinds) == {kind}, str(judge(history))


def test_every_kind_of_record_anomaly_is_planted() -> None:
    assert {kind for _, kind in PLANTED} == set(checker.RECORD_KINDS) - set(SHARE_KINDS)


def test_a_slow_copier_lost_nothing() -> None:
    history = sound()
    without(history, COPY, 5)
    history.sends = [s for s in history.sends if (s.topic, s.number) != (COPY, 5)]
    assert judge(history).is_sound


def test_a_repeat_after_a_new_assignment_is_no_anomaly() -> None:
    """With at-least-once delivery, uncommitted records are delivered again."""
    history = sound()
    history.positions.append(position(3, 9, 3))
    history.polls += [poll(LOG, n, n, f"{GROUP}.2", 3) for n in (3, 4, 5)]
    assert judge(history).is_sound


def test_a_commit_that_was_acknowledged_after_the_question_may_be_missing() -> None:
    history = sound()
    history.commits.append(commit(6, 3.95))
    history.polls.append(poll(LOG, 5, 5, f"{GROUP}.4", 4))
    assert judge(history).is_sound


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "there is no *history*.jsonl.gz in DIR; "),
        ("/none.jsonl.gz", "there is no file DIR/none.jsonl.gz; "),
    ],
)
def test_a_missing_history_is_one_line_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.setattr(spark_checker, "spark_session", lambda *_, **__: pytest.fail("Spark was started"))
    monkeypatch.setattr(sys, "argv", ["spark_checker", f"{tmp_path}{name}"])
    with pytest.raises(SystemExit, match=re.escape(said.replace("DIR", str(tmp_path)))):
        spark_checker.main()
