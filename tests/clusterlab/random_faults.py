"""Random faults: processes of a cluster are killed, frozen, continued and restarted, one after the other."""

from __future__ import annotations

import random
import signal
import time

from clusterlab.tidelog_cluster import TidelogCluster

LONGEST_PAUSE_S = 2.5
KILL, FREEZE, CONTINUE, START = "kill", "freeze", "continue", "start"
WEIGHTS = {KILL: 3, FREEZE: 2, CONTINUE: 3, START: 3}


class RandomFaults:
    """`done` lists the actions in order. One controller is always spared, because without any, `tidelog
    cluster start` of a broker waits.
    """

    def __init__(self, cluster: TidelogCluster, chance: random.Random) -> None:
        self.done: list[str] = []
        self._cluster = cluster
        self._chance = chance
        self._up = sorted(name for name in cluster.pids() if name not in ("controller-2", "coordinator-1"))
        self._dead: list[str] = []
        self._frozen: list[str] = []

    def run(self, seconds: float) -> None:
        """Runs the faults. At the end, all processes run again."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            time.sleep(self._chance.uniform(0, LONGEST_PAUSE_S))
            self._act(self._chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0])
        while self._frozen:
            self._act(CONTINUE)
        while self._dead:
            self._act(START)

    def _act(self, what: str) -> None:
        source = {KILL: self._up, FREEZE: self._up, CONTINUE: self._frozen, START: self._dead}[what]
        if not source:
            return
        name = self._chance.choice(sorted(source))
        if what == START and "etcd-1" not in self._up:
            if "etcd-1" not in self._dead:
                return  # frozen: a start would wait for it
            name = "etcd-1"
        source.remove(name)
        self.done.append(f"{what} {name}")
        if what == KILL:
            self._cluster.kill(name)
            self._dead.append(name)
        elif what == FREEZE:
            self._cluster.signal(name, signal.SIGSTOP)
            self._frozen.append(name)
        else:
            if what == CONTINUE:
                self._cluster.signal(name, signal.SIGCONT)
            else:
                self._cluster.start(name)
            self._up.append(name)
