"""The choice of small files to combine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.pipeline.tables.maintenance import LARGE_ENOUGH, packs_of

SIZES = st.dictionaries(
    st.builds("event_date=2026-01-{:02d}/f{}.parquet".format, st.integers(1, 3), st.integers(0, 99)),
    st.integers(0, 300),
    max_size=40,
)


def test_small_files_of_a_date_are_combined_up_to_the_target() -> None:
    sizes = {f"a/{number}": 40 for number in range(5)} | {"b/0": 40, "b/1": 99, "c/0": 10, "c/1": 10}
    assert [(pack.directory, pack.files, pack.size_bytes) for pack in packs_of(sizes, 100)] == [
        ("a", ("a/0", "a/1"), 80),
        ("a", ("a/2", "a/3"), 80),
        ("c", ("c/0", "c/1"), 20),
    ]


def test_nothing_to_do() -> None:
    assert packs_of({}, 100) == []
    assert packs_of({"a/0": 1, "b/0": 1, "a/1": 75}, 100) == []


@given(SIZES, st.integers(1, 400))
def test_packs_are_disjoint_small_and_within_the_target(sizes: dict[str, int], target: int) -> None:
    packs = packs_of(sizes, target)
    files = [path for pack in packs for path in pack.files]
    assert len(files) == len(set(files))
    for pack in packs:
        assert len(pack.files) > 1
        assert all(path.startswith(f"{pack.directory}/") for path in pack.files)
        assert pack.size_bytes == sum(sizes[path] for path in pack.files) <= target
        assert all(sizes[path] < target * LARGE_ENOUGH for path in pack.files)


@given(SIZES, st.integers(1, 400))
def test_packing_comes_to_an_end(sizes: dict[str, int], target: int) -> None:
    """Each round makes fewer files, so a table without new files is not rewritten for ever."""
    for _ in range(10):
        packs = packs_of(sizes, target)
        if not packs:
            return
        before = len(sizes)
        for number, pack in enumerate(packs):
            for path in pack.files:
                del sizes[path]
            sizes[f"{pack.directory}/z{number}-{before}"] = pack.size_bytes
        assert len(sizes) < before
    raise AssertionError("still packing")
