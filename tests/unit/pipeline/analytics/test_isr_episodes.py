"""ISR episodes are found in the reports of leaders."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.pipeline.analytics.isr import Episode, Sighting, agreed, episodes_of, silent_in

STEP_MS = 15_000


def told(counts: str, teller: int = 1, start: int = 0) -> list[Sighting]:
    """Returns the sightings of a text such as `32.3`: the number in sync at each step, or nothing at a
    dot.
    """
    return [
        Sighting((start + step) * STEP_MS, teller, 3, int(count), teller)
        for step, count in enumerate(counts)
        if count != "."
    ]


def found(counts: str) -> list[Episode]:
    return episodes_of(told(counts), STEP_MS)


def test_an_episode_is_between_the_last_whole_sighting_and_the_next() -> None:
    (episode,) = found("3332123")
    assert (episode.began_after_ms, episode.began_ms, episode.ended_ms) == (30_000, 45_000, 90_000)
    assert (episode.least_in_sync, episode.shrinks, episode.expands) == (1, 2, 2)
    assert episode.seconds == 45


def test_a_whole_history_has_none_and_a_short_one_may_be_all_episode() -> None:
    assert found("3333") == []
    (episode,) = found("22")
    assert (episode.began_after_ms, episode.ended_ms, episode.shrinks) == (None, None, 0)
    assert found("") == []


def test_an_episode_at_the_end_is_open() -> None:
    (episode,) = found("3322")
    assert episode.ended_ms is None
    assert episode.last_ms == 3 * STEP_MS


def test_a_gap_within_an_episode_is_reported() -> None:
    (episode,) = found("32......23")
    assert episode.unseen_ms == 7 * STEP_MS
    assert found("32.23")[0].unseen_ms == 0, "one failed scrape is no silence"


def test_a_new_leader_continues_the_episode() -> None:
    sightings = agreed(told("3332", 1) + told("2233", 2, start=4), STEP_MS)
    (episode,) = episodes_of(sightings, STEP_MS)
    assert episode.leaders == [1, 2]
    assert episode.ended_ms == 6 * STEP_MS


def test_a_leader_that_does_not_know_it_was_deposed_does_not_end_the_episode() -> None:
    # Broker 1 is cut off and continues to report 3 of 3. Broker 2 leads since step 2 and reports 2 of 3, half
    # a step later.
    old = told("33333333", 1)
    new = [s.__class__(s.at_ms + STEP_MS // 2, 2, 3, s.in_sync, 2) for s in told("22223", 2, start=2)]
    (episode,) = episodes_of(agreed(old + new, STEP_MS), STEP_MS)
    assert episode.ended_ms == 6 * STEP_MS + STEP_MS // 2
    naive = episodes_of(sorted(old + new, key=lambda s: s.at_ms), STEP_MS)
    assert len(naive) > 1, "each sighting of the old leader would end it"


def test_time_under_min_isr_counts() -> None:
    sightings = [
        Sighting(step * STEP_MS, 1, 3, count, 1, count < 2) for step, count in enumerate((3, 2, 1, 1, 3))
    ]
    (episode,) = episodes_of(sightings, STEP_MS)
    assert episode.under_min_ms == 2 * STEP_MS


def test_silent_brokers_are_those_without_reports_during_the_episode() -> None:
    (episode,) = found("33222233")
    all_times = tuple(range(0, 8 * STEP_MS, STEP_MS))
    heard = {1: all_times, 2: all_times[:2] + all_times[6:], 3: all_times}
    assert silent_in(episode, (1, 2, 3), heard, STEP_MS) == [2]
    assert silent_in(episode, (4,), heard, STEP_MS) == [4], "never heard at all"
    late = dict.fromkeys((1, 2, 3), (all_times[0], all_times[7]))
    assert silent_in(episode, (1, 2, 3), late, STEP_MS) == [], (
        "no broker was heard, so the scraper was silent"
    )


@given(st.lists(st.integers(0, 3), max_size=60))
def test_episodes_cover_just_the_time_out_of_sync(counts: list[int]) -> None:
    sightings = [Sighting(step * STEP_MS, 1, 3, count) for step, count in enumerate(counts)]
    episodes = episodes_of(sightings, STEP_MS)
    covered = {
        sighting.at_ms
        for sighting in sightings
        for e in episodes
        if e.began_ms <= sighting.at_ms <= e.last_ms and sighting.at_ms != e.ended_ms
    }
    assert covered == {s.at_ms for s in sightings if s.in_sync < 3}
    assert all(e.ended_ms is None for e in episodes) or episodes[:-1] == [
        e for e in episodes[:-1] if e.ended_ms is not None
    ]
    assert sum(e.shrinks for e in episodes) + sum(1 for c in counts[:1] if c < 3) >= len(episodes)
