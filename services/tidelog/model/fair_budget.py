"""Fair budgets: each is an amount that clients share, and that none of them can take from the others.

Budgets limit requests in memory, answers that nobody reads, calls to coordinators, partitions that fetches
watch, sessions and viewers. A budget knows *holdings*, such as the buffer of one connection. A holding
belongs to a *key*: the principal of a client, the address of a client without a login, or BROKERS.

The *fair share* of a key is the capacity, divided by the number of keys that hold something and one more.

- A key below its fair share gets what it asks for. If nothing is left, others lose holdings: first those that
  made no progress for `stalled_s`, largest first, then the largest ones of the keys above the fair share.
- A key above its fair share may take all but a spare eighth, which is left for the others. Beyond that, it
  only gets the place of holdings without progress. Otherwise it waits or is refused.
- `reserve` is a part of the total that only BROKERS may use. Their holdings are not evicted.

A budget has no clock and does no I/O. The caller passes the time and the calls that evict and grant.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple

from tidelog.model.acl import ANONYMOUS

NO_LIMIT: Final = sys.maxsize
BROKERS: Final = "brokers"
"""The key of the brokers' own listener. It is no principal and no address."""
STALLED_S: Final = 10.0
"""The time after which a holding that did not change counts as one without progress, in most budgets."""
NEVER_S: Final = float("inf")
"""The time without progress in a budget whose holdings need not make any."""
ANY_TIME_S: Final = 0.0
"""The time that a caller passes to such a budget, in which nothing depends on it while nobody waits."""
SPARE_PART: Final = 8
SCAN_INTERVAL_S: Final = 1.0
"""The time between two searches for holdings without progress that a key above its fair share may cause."""
MAX_TRIES: Final = 16
"""The waiting holdings that are looked at when room becomes free."""


def client_key(principal: str, host: str) -> str:
    """Returns the key of a client. A request of a broker itself has no host."""
    if not host:
        return BROKERS
    return host if principal == ANONYMOUS else principal


def _nothing() -> None: ...


class Holding:
    """One holder's part of a budget. `evict` is called when it has been taken away, and has to free what it
    stands for. `progressed_s` returns when the holder last made progress, on the clock of the budget; without
    it, that is the last time at which the holding grew.
    """

    __slots__ = ("account", "amount", "evict", "grew_s", "progressed_s")

    def __init__(
        self, evict: Callable[[], object] = _nothing, progressed_s: Callable[[], float] | None = None
    ) -> None:
        self.evict = evict
        self.progressed_s = progressed_s
        self.amount = 0
        self.grew_s = 0.0
        self.account: _Account | None = None  # while it holds something


class _Account:
    """The holdings of one key, and their sum."""

    __slots__ = ("held", "holdings", "key")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.held = 0
        self.holdings: dict[Holding, None] = {}


class _Wish(NamedTuple):
    """The wish of a waiting holding, and the call when it has it."""

    key: Hashable
    amount: int
    granted: Callable[[], object]


class BudgetUse(NamedTuple):
    """The numbers of a budget that metrics show. `evicted_total` counts the holdings that were evicted."""

    held: int
    total: int
    evicted_total: int


class FairBudget:
    """A budget of `total`, in bytes or in objects."""

    __slots__ = (
        "_accounts",
        "_checked_s",
        "_freed_s",
        "_scanned_s",
        "_stalled_s",
        "evicted_total",
        "held_by_brokers",
        "held_by_clients",
        "reserve",
        "spare_left",
        "total",
        "waiting",
    )

    def __init__(self, total: int, reserve: int = 0, stalled_s: float = STALLED_S) -> None:
        self.total = total
        self.reserve = reserve
        self._stalled_s = stalled_s
        self._accounts: dict[Hashable, _Account] = {}
        self.waiting: dict[Holding, _Wish] = {}
        self._scanned_s = self._checked_s = self._freed_s = float("-inf")
        self.held_by_clients = 0
        self.held_by_brokers = 0
        self.evicted_total = 0
        self.spare_left = self.capacity - self._spare()
        """The amount that any client may take now. It is below 0 while keys above their share get nothing."""

    @property
    def held(self) -> int:
        return self.held_by_clients + self.held_by_brokers

    @property
    def use(self) -> BudgetUse:
        """The numbers for metrics. Any thread may read them."""
        return BudgetUse(self.held, self.total, self.evicted_total)

    @property
    def capacity(self) -> int:
        """The most that clients may hold together."""
        return self.total - max(self.reserve, self.held_by_brokers)

    def set_total(self, total: int) -> None:
        """Changes the total. Nothing that is held is lost."""
        self.total = total
        self.spare_left = self.capacity - self._spare() - self.held_by_clients

    def held_by(self, key: Hashable) -> int:
        """Returns what the holdings of a key hold."""
        account = self._accounts.get(key)
        return 0 if account is None else account.held

    def fair_share(self, key: Hashable) -> int:
        """Returns up to how much `key` gets whatever others hold."""
        keys = len(self._accounts) + (key not in self._accounts) - (BROKERS in self._accounts)
        return max(self.capacity // (keys + 1), 1)

    def resize(self, holding: Holding, key: Hashable, amount: int, now_s: float) -> bool:
        """Lets a holding have `amount`. Returns False, with nothing changed, if there is no room for more.
        The key of a holding can change only while it holds nothing.
        """
        if amount > holding.amount:
            return self._grow(holding, key, amount - holding.amount, now_s, may_use_spare=False)
        if amount < holding.amount:
            self._change(holding, key, amount - holding.amount)
            self._freed_s = now_s
            self._grant(now_s)
        return True

    def await_room(
        self, holding: Holding, key: Hashable, amount: int, granted: Callable[[], object], now_s: float
    ) -> None:
        """Calls `granted` once the holding has `amount`, which has been refused. While holdings wait, the
        caller calls `check` from time to time.
        """
        if not self.waiting:
            self._freed_s = max(self._freed_s, now_s)
        self.waiting[holding] = _Wish(key, amount, granted)

    def forget(self, holding: Holding, now_s: float) -> None:
        """Ends a holding, also while it waits."""
        self.waiting.pop(holding, None)
        if holding.amount:
            self.resize(holding, BROKERS, 0, now_s)
        holding.evict = _nothing
        holding.progressed_s = None

    def check(self, now_s: float) -> None:
        """Looks for holdings without progress while others wait. If nothing has become free for a while, the
        waiting ones may block each other: one of them may use the spare part, and after `stalled_s`, the
        largest holding of the largest key is evicted.
        """
        if not self.waiting or now_s - self._checked_s < SCAN_INTERVAL_S:
            return
        self._checked_s = now_s
        self._grant(now_s, may_use_spare=now_s - self._freed_s >= SCAN_INTERVAL_S)
        if self.waiting and now_s - self._freed_s >= self._stalled_s and self.held_by_clients:
            accounts = [each for each in self._accounts.values() if each.key != BROKERS]
            largest = max(accounts, key=lambda account: account.held)
            self._evict((max(largest.holdings, key=lambda holding: holding.amount),), now_s)

    def _grow(
        self, holding: Holding, key: Hashable, growth: int, now_s: float, *, may_use_spare: bool
    ) -> bool:
        if holding.account is not None:
            key = holding.account.key
        victims = self._victims(holding, key, growth, now_s, may_use_spare)
        if victims is None:
            return False
        for victim in victims:
            self._change(victim, key, -victim.amount)
        self._change(holding, key, growth)
        holding.grew_s = now_s
        self._call_evicted(victims, now_s)
        return True

    def _change(self, holding: Holding, key: Hashable, growth: int) -> None:
        account = holding.account
        if account is None:
            account = self._accounts.get(key)
            if account is None:
                account = self._accounts[key] = _Account(key)
            holding.account = account
            account.holdings[holding] = None
        holding.amount += growth
        account.held += growth
        if account.key == BROKERS:
            self.held_by_brokers += growth
        else:
            self.held_by_clients += growth
        if not holding.amount:
            holding.account = None
            del account.holdings[holding]
            if not account.holdings:
                del self._accounts[account.key]
        self.spare_left = self.capacity - self._spare() - self.held_by_clients

    def _spare(self) -> int:
        return max(self.capacity // SPARE_PART, 1)

    def _victims(
        self, holding: Holding, key: Hashable, growth: int, now_s: float, may_use_spare: bool
    ) -> Sequence[Holding] | None:
        """Returns the holdings that have to make room for one to grow, or None if it may not grow."""
        if key == BROKERS:
            return () if self.held + growth <= self.total else None
        share = self.fair_share(key)
        is_below = self.held_by(key) + growth <= share
        needed = growth - self.spare_left
        if is_below or may_use_spare or self.held_by_clients == holding.amount:
            needed -= self._spare()
        if needed <= 0:
            return ()
        if growth > self.capacity:
            return None
        if not is_below:
            if now_s - self._scanned_s < SCAN_INTERVAL_S:
                return None
            self._scanned_s = now_s
        stalled: list[tuple[int, int, Holding]] = []
        others: list[tuple[int, int, Holding]] = []
        for account in self._accounts.values():
            if account.key == BROKERS:
                continue
            for each in account.holdings:
                if each is holding:
                    continue
                if self._is_stalled(each, now_s):
                    stalled.append((account.held, each.amount, each))
                elif is_below and account.held > share:
                    others.append((account.held, each.amount, each))
        for found in (stalled, others):
            found.sort(key=lambda item: item[:2], reverse=True)
        victims: list[Holding] = []
        taken: dict[Hashable, int] = {}
        for is_progressing, candidates in ((False, stalled), (True, others)):
            for held, amount, each in candidates:
                owner = each.account
                assert owner is not None
                lost = taken.get(owner.key, 0)
                if is_progressing and held - lost <= share:
                    continue
                taken[owner.key] = lost + amount
                victims.append(each)
                needed -= amount
                if needed <= 0:
                    return victims
        return None

    def _is_stalled(self, holding: Holding, now_s: float) -> bool:
        """Returns whether a holding makes no progress. One that waits for room is not to blame for that."""
        since_s = holding.grew_s if holding.progressed_s is None else holding.progressed_s()
        return now_s - since_s >= self._stalled_s and holding not in self.waiting

    def _evict(self, victims: Sequence[Holding], now_s: float) -> None:
        for victim in victims:
            self._change(victim, BROKERS, -victim.amount)
        self._call_evicted(victims, now_s)
        self._grant(now_s)

    def _call_evicted(self, victims: Sequence[Holding], now_s: float) -> None:
        if victims:
            self._freed_s = now_s
            self.evicted_total += len(victims)
            for victim in victims:
                self.waiting.pop(victim, None)
            for victim in victims:
                victim.evict()

    def _grant(self, now_s: float, *, may_use_spare: bool = False) -> None:
        """Lets waiting holdings have what they wait for, and the first of them perhaps the spare part. A
        refused one goes to the end.
        """
        for attempt in range(min(len(self.waiting), MAX_TRIES)):
            if not self.waiting:  # an eviction has ended others
                return
            holding = next(iter(self.waiting))
            wish = self.waiting[holding]
            growth, uses_spare = wish.amount - holding.amount, may_use_spare and not attempt
            if growth <= 0 or self._grow(holding, wish.key, growth, now_s, may_use_spare=uses_spare):
                self.waiting.pop(holding, None)
                wish.granted()
            else:
                self.waiting.pop(holding, None)
                self.waiting[holding] = wish
