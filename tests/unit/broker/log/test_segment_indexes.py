"""Indexes equal plain lists across spills, truncation and reopening, also for a reader in another thread."""

from __future__ import annotations

import threading
from bisect import bisect_right
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.broker.log import segment_indexes
from tidelog.broker.log.directory_files import PartitionDirectory
from tidelog.broker.log.segment_indexes import OffsetIndex, TimeIndex


@pytest.fixture(autouse=True)
def small_spills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_indexes, "SPILL_ENTRIES", 8)


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 40)),
            st.tuples(st.just("spill"), st.just(0)),
            st.tuples(st.just("keep"), st.integers(0, 500)),
            st.tuples(st.just("reopen"), st.just(0)),
        ),
        max_size=12,
    ),
    base=st.sampled_from([0, 10**12]),
    hint=st.integers(-1, 300),
)
def test_an_offset_index_equals_a_sorted_list(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], base: int, hint: int
) -> None:
    directory = PartitionDirectory(str(tmp_path_factory.mktemp("index")))
    index = OffsetIndex(directory, base)
    index.create()
    entries: list[tuple[int, int]] = []
    for step, amount in steps:
        if step == "append":
            for _ in range(amount):
                last = entries[-1] if entries else (base, -50)
                entries.append((last[0] + 3, last[1] + 100))
                index.append(*entries[-1])
        elif step == "spill":
            index.spill()
        elif step == "keep":
            entries = [entry for entry in entries if entry[0] - base < amount]
            index.keep_below(amount)
        else:
            index.spill()
            index.close()
            index = OffsetIndex(directory, base)
            index.opened_with(len(entries))
        assert index.entry_count == len(entries)
        assert [index.entry(slot) for slot in range(len(entries))] == [(o - base, p) for o, p in entries]
    copy = index.reader()
    for reader in (index, copy):
        for offset in range(base, base + 3 * len(entries) + 5):
            slot = bisect_right(entries, (offset, 1 << 40)) - 1
            assert reader.position_for(offset) == ((slot, entries[slot][1]) if slot >= 0 else (-1, 0))
        for position in range(0, 100 * len(entries) + 100, 70):
            slot = bisect_right([at for _, at in entries], position) - 1
            found = reader.place_at_or_below(position, hint)
            assert found == ((slot, entries[slot][1]) if slot >= 0 else (-1, 0))
        reader.close()


@settings(max_examples=80, deadline=None)
@given(times=st.lists(st.integers(0, 1000), max_size=60), kept=st.integers(0, 70))
def test_a_time_index_has_only_rising_timestamps(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], kept: int
) -> None:
    index = TimeIndex(PartitionDirectory(str(tmp_path_factory.mktemp("index"))), 100)
    index.create()
    entries: list[tuple[int, int]] = []
    for offset, time in enumerate(times, 101):
        index.append_if_later(time, offset)
        if not entries or time > entries[-1][0]:
            entries.append((time, offset))
    index.keep_offsets_below(100 + kept)
    entries = [entry for entry in entries if entry[1] < 100 + kept]
    assert index.last() == (entries[-1] if entries else (-1, 100))
    assert index.last_timestamp == index.last()[0]
    for time in range(-1, 1002, 7):
        slot = bisect_right([at for at, _ in entries], time) - 1
        assert index.offset_for(time) == (entries[slot][1] if slot >= 0 else 100)
    index.close()


def test_another_thread_reads_and_spills_while_entries_are_added(tmp_path: Path) -> None:
    index = OffsetIndex(PartitionDirectory(str(tmp_path)), 0)
    index.create()
    wrong: list[tuple[int, tuple[int, int]]] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            index.spill()
            reader = index.reader()
            for offset in range(1, reader.entry_count, 97):
                found = reader.position_for(offset)
                if found != (offset - 1, 10 * offset):
                    wrong.append((offset, found))
            reader.close()

    thread = threading.Thread(target=read)
    thread.start()
    for offset in range(1, 20_000):
        index.append(offset, 10 * offset)
    done.set()
    thread.join()
    index.spill()
    index.close()
    assert not wrong
    assert (tmp_path / f"{0:020d}.index").stat().st_size == 8 * 19_999
