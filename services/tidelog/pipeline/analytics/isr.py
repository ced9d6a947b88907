"""ISR episodes of a partition: from the first time its leader reports too few replicas in sync until all are
in sync again.

Only scrapes are known. The beginning of an episode is therefore between the last sighting with all replicas
in sync and the first without. An episode shorter than the scrape interval may not be visible. The leaders'
counters of expands (`kafka_server_replicamanager_isrexpands_total`) count all episodes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tidelog.pipeline.analytics.facts import SILENT_INTERVALS


@dataclass(frozen=True, slots=True)
class Sighting:
    """A report of `teller` about a partition. The teller is a broker that claims to lead it, or None for an
    exporter.
    """

    at_ms: int
    teller: int | None
    replicas: int
    in_sync: int
    leader: int | None = None
    is_under_min: bool = False


@dataclass(slots=True)
class Episode:
    """The change to fewer replicas happened between `began_after_ms` and `began_ms`. They are None if the
    history begins within the episode. `ended_ms` is None if the episode has not ended. `shrinks` and
    `expands` count the observed changes.
    """

    began_after_ms: int | None
    began_ms: int
    ended_ms: int | None
    last_ms: int
    replicas: int
    least_in_sync: int
    leaders: list[int] = field(default_factory=list)
    shrinks: int = 0
    expands: int = 0
    under_min_ms: int = 0
    unseen_ms: int = 0

    @property
    def seconds(self) -> float:
        """Returns the observed length of the episode."""
        return ((self.last_ms if self.ended_ms is None else self.ended_ms) - self.began_ms) / 1000


def agreed(sightings: Sequence[Sighting], interval_ms: int) -> list[Sighting]:
    """Returns one series out of the series of several tellers. While an old leader that does not know its
    successor reports beside the new one, the smaller ISR counts.
    """
    ordered = sorted(sightings, key=lambda s: (s.at_ms, s.in_sync))
    by_teller: dict[int | None, list[Sighting]] = {}
    for sighting in ordered:
        by_teller.setdefault(sighting.teller, []).append(sighting)
    if len(by_teller) < 2:
        return _one_a_moment(ordered)
    times = {teller: [s.at_ms for s in told] for teller, told in by_teller.items()}
    reach_ms = int(interval_ms * 1.5)
    found = []
    for sighting in ordered:
        least = sighting
        for teller, told in by_teller.items():
            if teller == sighting.teller:
                continue
            before = bisect_right(times[teller], sighting.at_ms) - 1
            after = bisect_left(times[teller], sighting.at_ms)
            if (
                before >= 0
                and after < len(told)
                and sighting.at_ms - told[before].at_ms <= reach_ms
                and told[after].at_ms - sighting.at_ms <= reach_ms
                and told[before].in_sync < least.in_sync
            ):
                least = told[before]
        found.append(replace(least, at_ms=sighting.at_ms))
    return _one_a_moment(found)


def _one_a_moment(ordered: Sequence[Sighting]) -> list[Sighting]:
    found: dict[int, Sighting] = {}
    for sighting in ordered:
        known = found.get(sighting.at_ms)
        if known is None or sighting.in_sync < known.in_sync:
            found[sighting.at_ms] = sighting
    return [found[at_ms] for at_ms in sorted(found)]


def episodes_of(sightings: Sequence[Sighting], interval_ms: int) -> list[Episode]:
    """Returns the episodes of one partition from its sorted and agreed sightings."""
    found: list[Episode] = []
    episode: Episode | None = None
    before: Sighting | None = None
    for sighting in sightings:
        is_whole = sighting.in_sync >= sighting.replicas
        if episode is None:
            if not is_whole:
                episode = _begun(sighting, before)
                found.append(episode)
        else:
            assert before is not None, "an episode begins with a sighting"
            _go_on(episode, before, sighting, interval_ms)
            if is_whole:
                episode.ended_ms = sighting.at_ms
                episode = None
        before = sighting
    return found


def _begun(sighting: Sighting, before: Sighting | None) -> Episode:
    return Episode(
        began_after_ms=None if before is None else before.at_ms,
        began_ms=sighting.at_ms,
        ended_ms=None,
        last_ms=sighting.at_ms,
        replicas=sighting.replicas,
        least_in_sync=sighting.in_sync,
        leaders=[leader for leader in _leaders(before, sighting) if leader is not None],
        # The first shrink is unknown if the history begins within the episode.
        shrinks=int(before is not None and before.in_sync > sighting.in_sync),
    )


def _leaders(before: Sighting | None, sighting: Sighting) -> list[int | None]:
    if before is None or before.leader == sighting.leader:
        return [sighting.leader]
    return [before.leader, sighting.leader]


def _go_on(episode: Episode, before: Sighting, sighting: Sighting, interval_ms: int) -> None:
    passed_ms = sighting.at_ms - before.at_ms
    episode.last_ms = sighting.at_ms
    episode.least_in_sync = min(episode.least_in_sync, sighting.in_sync)
    episode.replicas = max(episode.replicas, sighting.replicas)
    episode.shrinks += sighting.in_sync < before.in_sync
    episode.expands += sighting.in_sync > before.in_sync
    if before.is_under_min:
        episode.under_min_ms += passed_ms
    if passed_ms > SILENT_INTERVALS * interval_ms:
        episode.unseen_ms += passed_ms
    if sighting.leader is not None and sighting.leader not in episode.leaders[-1:]:
        episode.leaders.append(sighting.leader)


def silent_in(
    episode: Episode, holders: Sequence[int], heard: Mapping[int, Sequence[int]], interval_ms: int
) -> list[int]:
    """Returns the brokers that hold a replica and were silent during a part of the episode in which others
    were not. `heard` maps a broker to the sorted times of its scrapes.
    """
    start_ms = episode.began_ms if episode.began_after_ms is None else episode.began_after_ms
    end_ms = episode.last_ms if episode.ended_ms is None else episode.ended_ms

    def longest_silence_ms(broker: int) -> int:
        times = heard.get(broker, ())
        inside = times[bisect_left(times, start_ms) : bisect_right(times, end_ms)]
        return max(after - before for before, after in pairwise([start_ms, *inside, end_ms]))

    # On a busy machine, scrapes are late, but then they are late for all brokers.
    usual_ms = min((longest_silence_ms(broker) for broker in heard), default=0)
    bound_ms = 1.5 * max(interval_ms, usual_ms)
    return [broker for broker in sorted(holders) if longest_silence_ms(broker) > bound_ms]
