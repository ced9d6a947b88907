"""A fair budget gives the others their shares, whoever fills it, and stays below its total."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.model.fair_budget import BROKERS, STALLED_S, FairBudget, Holding

TOTAL, RESERVE = 1_000, 100
KEYS = ("a", "b", "c", "d", BROKERS)

steps = st.lists(
    st.tuples(
        st.sampled_from(KEYS),
        st.integers(0, 7),  # the number of the key's holding
        st.integers(0, 600),  # the amount that it asks for
        st.sampled_from((0.0, 0.5, STALLED_S)),  # the time that passes before
        st.booleans(),  # whether it waits if it is refused
    ),
    max_size=60,
)


class Lab:
    """A budget with holdings by key and number, as seen by their owners."""

    def __init__(self) -> None:
        self.budget = FairBudget(TOTAL, RESERVE)
        self.holdings: dict[tuple[str, int], Holding] = {}
        self.evicted: list[Holding] = []
        self.granted: list[Holding] = []

    def holding(self, key: str, number: int) -> Holding:
        known = self.holdings.get((key, number))
        if known is None:
            known = self.holdings[key, number] = Holding()
            known.evict = lambda: self.evicted.append(known)
        return known

    def held(self) -> dict[Holding, int]:
        return {each: each.amount for each in self.holdings.values()}

    def held_by(self, key: str) -> int:
        return sum(each.amount for (owner, _), each in self.holdings.items() if owner == key)


@given(steps)
def test_a_budget_keeps_its_promises(actions: list[tuple[str, int, int, float, bool]]) -> None:
    lab, now_s = Lab(), 0.0
    budget = lab.budget
    for key, number, amount, passed_s, waits in actions:
        now_s += passed_s
        holding = lab.holding(key, number)
        before, grew_s = lab.held(), {each: each.grew_s for each in lab.holdings.values()}
        waiting = set(budget.waiting)
        share, own = budget.fair_share(key), lab.held_by(key)
        brokers = lab.held_by(BROKERS)
        lab.evicted.clear()
        granted = budget.resize(holding, key, amount, now_s)
        growth = amount - before[holding]

        # never above the total, and the books are right
        assert budget.held == sum(lab.held().values()) <= TOTAL
        assert all(budget.held_by(each) == lab.held_by(each) for each in KEYS)
        assert lab.held_by(BROKERS) or budget.held <= TOTAL - RESERVE

        if key == BROKERS:
            # the reserve is for brokers
            assert granted or brokers + growth > RESERVE
        elif growth > 0 and (
            own + growth <= share or (growth <= 900 and before[holding] == sum(before.values()))
        ):
            assert granted  # whatever others hold
        if growth > 0:
            assert holding.amount == (amount if granted else before[holding])
            assert granted or not lab.evicted

        # only holdings without progress, or of keys above the fair share, are evicted
        stalled = [
            each
            for each, since_s in grew_s.items()
            if before[each] and now_s - since_s >= STALLED_S and each is not holding and each not in waiting
        ]
        owners = {each: owner for (owner, _), each in lab.holdings.items()}
        stalled = [each for each in stalled if owners[each] != BROKERS]
        evicted = lab.evicted if growth > 0 else []  # less for one may let others grow, too
        for victim in evicted:
            assert owners[victim] != BROKERS
            if victim not in stalled:
                assert set(stalled) <= set(evicted)
                left = [before[each] for each in before if owners[each] == owners[victim]]
                assert sum(left) > share
        if len(evicted) == 1 and stalled:
            (victim,) = evicted
            held = {each: sum(before[x] for x in before if owners[x] == owners[each]) for each in stalled}
            assert (held[victim], before[victim]) == max((held[each], before[each]) for each in stalled)
        if not granted and waits:
            budget.await_room(holding, key, amount, lambda: None, now_s)
        budget.check(now_s)
        assert budget.held == sum(lab.held().values()) <= TOTAL


def test_one_key_leaves_a_spare_part_for_the_others() -> None:
    lab = Lab()
    taken = sum(lab.budget.resize(lab.holding("a", number), "a", 10, 0.0) for number in range(200))
    assert taken * 10 == 780  # seven eighths of 900, in whole holdings
    assert lab.budget.resize(lab.holding("b", 0), "b", 100, 0.0)
    assert not lab.evicted


def test_whoever_waits_gets_room_once_there_is_some() -> None:
    lab, granted = Lab(), []
    budget = lab.budget
    assert budget.resize(lab.holding("a", 0), "a", 780, 0.0)
    assert not budget.resize(lab.holding("a", 1), "a", 200, 0.0)
    budget.await_room(lab.holding("a", 1), "a", 200, lambda: granted.append(1), 0.0)
    budget.resize(lab.holding("a", 0), "a", 700, 1.0)
    budget.check(1.5)
    assert not granted
    budget.check(2.6)
    assert granted == [1]  # also from the spare part, because nothing becomes free


def test_those_that_wait_for_each_other_lose_the_largest() -> None:
    lab = Lab()
    budget = lab.budget
    for number in range(2):
        assert budget.resize(lab.holding("a", number), "a", 390 + number, 0.0)
    for number in range(2):
        budget.await_room(lab.holding("a", number), "a", 700, lambda: None, 0.0)
    for second in range(1, 31):
        budget.check(float(second))
    assert lab.evicted == [lab.holding("a", 1)]
    assert lab.holding("a", 0).amount == 700


def test_a_holding_that_ended_gets_nothing() -> None:
    lab, granted = Lab(), []
    budget = lab.budget
    assert budget.resize(lab.holding("a", 0), "a", 780, 0.0)
    budget.await_room(lab.holding("a", 1), "a", 200, lambda: granted.append(1), 0.0)
    budget.forget(lab.holding("a", 1), 0.0)
    budget.forget(lab.holding("a", 0), 0.0)
    assert budget.held == 0
    assert not granted
