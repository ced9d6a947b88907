"""The checker itself: sound histories pass, and it names every planted fault."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterlab import history as checker
from clusterlab.history import ACKNOWLEDGED, NO_PLACE, UNKNOWN, History, Read, Sent, judge, read_of, value_of

PARTITIONS = 3
Plan = list[tuple[int, str, bool]]
"""The key's index, the outcome and whether the record was stored; an acknowledged record always is."""


@st.composite
def plans(draw: st.DrawFn, at_least: int = 0) -> Plan:
    plan = draw(
        st.lists(
            st.tuples(st.integers(0, 5), st.sampled_from([ACKNOWLEDGED, UNKNOWN]), st.booleans()),
            min_size=at_least,
            max_size=40,
        )
    )
    return [(key, outcome, is_stored or outcome == ACKNOWLEDGED) for key, outcome, is_stored in plan]


def sound_history(plan: Plan) -> History:
    history = History()
    numbers: dict[int, int] = {}
    ends = [0] * PARTITIONS
    for index, (key, outcome, is_stored) in enumerate(plan):
        partition, number = key % PARTITIONS, numbers.get(key, 0)
        numbers[key] = number + 1
        offset = ends[partition] if is_stored else -1
        known_offset = offset if outcome == ACKNOWLEDGED else -1
        history.sent.append(Sent(f"k{key}", number, outcome, partition, known_offset, index, index + 1))
        if is_stored:
            ends[partition] += 1
            history.final.append(Read(partition, offset, f"k{key}", number, True))
    history.tailed = history.final[: len(history.final) // 2]
    return history


acknowledged_plans = st.lists(
    st.tuples(st.integers(0, 5), st.just(ACKNOWLEDGED), st.just(True)), min_size=2, max_size=40
)


@given(plans())
def test_a_sound_history_passes(plan: Plan) -> None:
    assert judge(sound_history(plan)).is_sound


@given(acknowledged_plans, st.data())
def test_a_lost_record_is_found(plan: Plan, data: st.DataObject) -> None:
    history = sound_history(plan)
    history.tailed = []
    history.final.pop(data.draw(st.integers(0, len(history.final) - 1)))
    found = judge(history)
    assert found.kinds == {checker.LOST: 1}


@given(acknowledged_plans, st.data())
def test_a_duplicated_record_is_found(plan: Plan, data: st.DataObject) -> None:
    history = sound_history(plan)
    again = data.draw(st.sampled_from(history.final))
    end = 1 + max(read.offset for read in history.final if read.partition == again.partition)
    history.final.append(again._replace(offset=end))
    assert judge(history).kinds == {checker.DUPLICATED: 1}


@given(acknowledged_plans, st.data())
def test_a_changed_value_is_found(plan: Plan, data: st.DataObject) -> None:
    history = sound_history(plan)
    history.tailed = []
    index = data.draw(st.integers(0, len(history.final) - 1))
    history.final[index] = history.final[index]._replace(is_intact=False)
    assert judge(history).kinds == {checker.CHANGED: 1}


@given(acknowledged_plans, st.data())
def test_an_invented_record_is_found(plan: Plan, data: st.DataObject) -> None:
    history = sound_history(plan)
    last = data.draw(st.sampled_from(history.final))
    end = 1 + max(read.offset for read in history.final if read.partition == last.partition)
    history.final.append(Read(last.partition, end, "nobody's", 0, True))
    assert judge(history).kinds == {checker.INVENTED: 1}


@pytest.mark.parametrize("outcome", [ACKNOWLEDGED, UNKNOWN])
def test_reordered_records_are_found(outcome: str) -> None:
    history = sound_history([(0, outcome, True)] * 4)
    history.tailed = []
    first, second = history.final[1], history.final[2]
    history.final[1:3] = [second._replace(offset=first.offset), first._replace(offset=second.offset)]
    kinds = judge(history).kinds
    assert kinds[checker.REORDERED] == 1
    assert set(kinds) <= {checker.REORDERED, checker.MOVED}


def test_a_record_of_unknown_outcome_may_be_stored_only_once() -> None:
    history = sound_history([(0, UNKNOWN, True)])
    history.final.append(history.final[0]._replace(offset=1))
    assert judge(history).kinds == {checker.DUPLICATED: 1}


@given(acknowledged_plans, st.data())
def test_a_record_at_another_place_is_found(plan: Plan, data: st.DataObject) -> None:
    history = sound_history(plan)
    history.tailed = []
    index = data.draw(st.integers(0, len(history.sent) - 1))
    history.sent[index] = history.sent[index]._replace(offset=10_000)
    assert judge(history).kinds == {checker.MOVED: 1}


@given(acknowledged_plans, st.data())
def test_a_record_that_was_shown_and_disappeared_is_found(plan: Plan, data: st.DataObject) -> None:
    history = sound_history([*plan, (0, UNKNOWN, True)])
    gone = history.final.pop()
    history.tailed = [*history.final, gone]
    assert judge(history).kinds == {checker.TAKEN_BACK: 1}


def test_a_place_that_now_holds_another_record_is_found() -> None:
    history = sound_history([(0, UNKNOWN, True), (3, UNKNOWN, False)])
    history.tailed = list(history.final)
    history.final = [history.final[0]._replace(key="k3")]
    assert judge(history).kinds == {checker.TAKEN_BACK: 1}


def test_a_reader_that_went_backwards_is_found() -> None:
    history = sound_history([(0, ACKNOWLEDGED, True)] * 3)
    history.tailed = [history.final[0], history.final[1], history.final[1], history.final[2]]
    assert judge(history).kinds == {checker.REREAD: 1}


def test_an_offset_acknowledged_for_two_records_is_found() -> None:
    history = sound_history([(0, ACKNOWLEDGED, True), (3, ACKNOWLEDGED, True)])
    history.sent[1] = history.sent[1]._replace(offset=history.sent[0].offset)
    kinds = judge(history).kinds
    assert kinds == {checker.ACKNOWLEDGED_TWICE: 1, checker.MOVED: 1}


def test_an_acknowledgement_without_an_offset_only_means_stored() -> None:
    history = sound_history([(0, ACKNOWLEDGED, True), (3, ACKNOWLEDGED, True)])
    history.sent = [record._replace(offset=NO_PLACE) for record in history.sent]
    assert judge(history).is_sound
    history.final.pop()
    assert judge(history).kinds == {checker.LOST: 1}


def test_many_anomalies_are_counted_and_a_few_shown() -> None:
    history = sound_history([(0, ACKNOWLEDGED, True)] * 100)
    history.final, history.tailed = [], []
    text = str(judge(history))
    assert "100 sent, 100 acknowledged, 0 read: 100 lost" in text
    assert len(text.splitlines()) == 1 + checker.SHOWN_ANOMALIES


@given(plans())
def test_histories_are_saved_and_loaded(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> None:
    path = tmp_path_factory.mktemp("history") / "history.jsonl"
    history = sound_history(plan)
    history.save(path)
    assert History.load(path) == history


@given(st.from_regex(r"[a-z0-9.]{1,20}", fullmatch=True), st.integers(0, 10**9), st.integers(0, 500))
def test_values_are_recognised(key: str, number: int, size_bytes: int) -> None:
    value = value_of(key, number, size_bytes)
    assert read_of(2, 7, key.encode(), value) == Read(2, 7, key, number, True)


@given(st.binary(max_size=60), st.binary(max_size=3), st.integers(0, 100), st.integers(1, 255))
def test_no_other_bytes_are_recognised(noise: bytes, key: bytes, place: int, flip: int) -> None:
    assert not read_of(0, 0, key, noise).is_intact or noise.split(b" ")[0] == key
    value = bytearray(value_of("key", 5, 100))
    value[place % len(value)] ^= flip
    read = read_of(0, 0, b"key", bytes(value))
    assert not read.is_intact or (read.key, read.number) != ("key", 5)


def test_another_keys_value_is_not_intact() -> None:
    assert not read_of(0, 0, b"a", value_of("b", 1, 50)).is_intact
    assert not read_of(0, 0, None, None).is_intact
