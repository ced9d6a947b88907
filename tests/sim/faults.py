"""Faults of the simulation: the seed chooses their kind, time and duration, and places some of them at the
worst moment.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sim.broker_node import BrokerNode, broker_name
from sim.controller_node import coordinator_name
from sim.loop import MS_PER_S, SimProcess
from sim.plan import TOPIC
from sim.rpc import controller_name
from sim.store import STORE
from tidelog.broker.partition.events import ProposeIsr
from tidelog.metadata.entries import broker_key
from tidelog.model.topics import TopicPartition

if TYPE_CHECKING:
    from sim.world import World

CLIENT: Final = "client"
MAX_PAUSE_S: Final = 10.0
MAX_CUT_S: Final = 8.0
MAX_STORE_PAUSE_S: Final = 7.0
MAX_SKEW_MS: Final = 6 * 3_600_000
LEASE_CLOCK_RATES: Final = (0.1, 0.5, 1.0, 3.0, 10.0)
PROCESS_CLOCK_RATES: Final = (0.7, 0.9, 1.0, 1.1, 1.5)
RESTART_AFTER_S: Final = (0.1, 0.5, 2.0, 5.0, 10.0)
TRAP_LASTS_S: Final = 3.0
PROPOSAL_DELAY_S: Final = 1.5
PROPOSAL_WEIGHT: Final = 4
"""The weight of faults in the middle of an ISR change, relative to the other weights below."""
MOST_LEADER_CHANGES: Final = 4
LEADER_CHANGE_S: Final = (0.3, 3.0)
MOMENTS: Final = ("store", "log")


class Faults:
    """Call `run`, then `heal`."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self._count = 0
        self._impaired: set[int] = set()
        self._is_healed = False
        self._kinds: list[tuple[Callable[[], str | None], int]] = [
            (self._kill_broker, 4),
            (self._crash_machine, 4),
            (self._pause_broker, 3),
            (self._stop_broker, 2),
            (self._kill_controller, 2),
            (self._pause_controller, 1),
            (self._kill_all_brokers, 1),
            (self._cut_network, 4),
            (self._cut_from_store, 2),
            (self._trouble_network, 3),
            (self._pause_store, 1),
            (self._end_a_lease, 3),
            (self._set_lease_clock, 1),
            (self._skew_a_clock, 1),
            (self._trouble_a_disk, 2),
            (self._set_trap, 6),
            (self._hurry_leaders, 2),
            (self._await_proposal, PROPOSAL_WEIGHT),
        ]
        if world.applications is not None:
            self._kinds += [(self._kill_application, 4), (self._pause_application, 4)]
        if world.plan.coordination is not None:
            self._kinds += [
                (self._kill_coordinator, 4),
                (self._pause_coordinator, 4),
                (self._stop_coordinator, 2),
                (self._isolate_coordinator, 3),
                (self._hurry_shard_leaders, 3),
                (self._outlive_coordinator, 4),
            ]

    async def run(self, for_s: float, at_least: int) -> None:
        """Runs until both kinds of faults have ended."""
        world, chance = self._world, self._chance
        until = world.loop.now + for_s
        actions = [action for action, _ in self._kinds]
        weights = [weight for _, weight in self._kinds]
        while world.loop.now < until or self._count < at_least:
            await asyncio.sleep(chance.expovariate(1 / world.plan.mean_fault_pause_s))
            self._do(chance.choices(actions, weights)[0])

    def _do(self, action: Callable[[], str | None]) -> None:
        what = action()
        if what is not None:
            self._note(what)

    def heal(self) -> None:
        """Ends all faults. Every process runs and can reach every other."""
        world = self._world
        self._is_healed = True
        world.on_moment = world.on_proposal = lambda *_: None
        network = world.network
        network.blocked.clear()
        network.loss_share = network.duplicate_share = 0.0
        network.delay_factor = 1.0
        world.store.run_lease_clock(1.0)
        for disk in world.disks.values():
            disk.refusal_share = 0.0
        for process in network.processes.values():
            process.clock_rate = 1.0
            process.resume()
        for broker_id in world.plan.brokers:
            self._start_broker(broker_id)
        for controller_id in world.plan.controllers:
            world.start_controller(controller_id)
        for coordinator_id in self._all_coordinators:
            world.start_coordinator(coordinator_id)
        for name in self._all_applications:
            self._start_application(name)

    # -- choices

    @property
    def _all_applications(self) -> list[str]:
        applications = self._world.applications
        return [] if applications is None else list(applications.all)

    @property
    def _all_coordinators(self) -> tuple[int, ...]:
        coordination = self._world.plan.coordination
        return () if coordination is None else coordination.coordinators

    def _coordinators(self) -> list[int]:
        return [c for c in self._all_coordinators if self._world.is_alive(coordinator_name(c))]

    def _brokers(self) -> list[int]:
        return [b for b in self._world.plan.brokers if self._world.is_alive(broker_name(b))]

    def _controllers(self) -> list[int]:
        return [c for c in self._world.plan.controllers if self._world.is_alive(controller_name(c))]

    def _names(self) -> list[str]:
        plan = self._world.plan
        return [
            STORE,
            CLIENT,
            *(broker_name(b) for b in plan.brokers),
            *(controller_name(c) for c in plan.controllers),
            *(coordinator_name(c) for c in self._all_coordinators),
            *self._all_applications,
        ]

    def _later(self, after_s: float, action: Callable[[], None]) -> None:
        self._world.loop.call_outside(after_s, action)

    # -- processes

    def _start_broker(self, broker_id: int) -> None:
        self._world.start_broker(broker_id)

    def _kill(self, process: SimProcess) -> None:
        process.kill()

    def _kill_broker(self, broker_id: int | None = None) -> str | None:
        alive = self._brokers()
        if broker_id is None and alive:
            broker_id = self._chance.choice(alive)
        process = None if broker_id is None else self._world.process(broker_name(broker_id))
        if process is None or broker_id is None:
            return None
        self._kill(process)
        self._later(self._chance.choice(RESTART_AFTER_S), lambda: self._start_broker(broker_id))
        return f"kill {process}"

    def _kill_all_brokers(self) -> str | None:
        killed = [self._kill_broker(broker_id) for broker_id in self._brokers()]
        return f"all: {killed}" if killed else None

    def _stop_broker(self) -> str | None:
        """Sends SIGTERM, then SIGKILL if the broker takes too long."""
        candidates = [b for b in self._brokers() if self._node(b).is_serving]
        if not candidates:
            return None
        broker_id = self._chance.choice(candidates)
        process = self._world.process(broker_name(broker_id))
        assert process is not None
        stopping = process.spawn(self._node(broker_id).stop())
        world, after_s = self._world, self._chance.choice(RESTART_AFTER_S)

        def end() -> None:
            if process.is_alive:
                process.kill()
            self._later(after_s, lambda: self._start_broker(broker_id))

        stopping.add_done_callback(lambda _: world.loop.call_outside(0, end) if process.is_alive else None)
        self._later(MAX_PAUSE_S, lambda: end() if process.is_alive else None)
        return f"stop {process}"

    def _node(self, broker_id: int) -> BrokerNode:
        node = self._world.node(broker_id)
        assert node is not None
        return node

    def _crash_machine(self, broker_id: int | None = None) -> str | None:
        """Crashes a machine, which loses its unflushed data or the whole disk. The number of affected
        replicas stays within the allowed losses.
        """
        world, chance = self._world, self._chance
        self._impaired = {impaired for impaired in self._impaired if not self._has_recovered(impaired)}
        candidates = list(world.plan.brokers) if broker_id is None else [broker_id]
        if len(self._impaired) >= world.plan.most_losses:
            candidates = [b for b in candidates if b in self._impaired]
        if not candidates:
            return None
        broker_id = chance.choice(candidates)
        process = world.process(broker_name(broker_id))
        if process is not None:
            self._kill(process)
        disk = world.disks[broker_id]
        how = chance.choice(("crash", "crash", "flip", "lose"))
        self._impaired.add(broker_id)
        if how == "lose":
            disk.lose_everything()
        else:
            disk.crash(chance)
            if how == "flip":
                disk.flip_a_bit(chance)
        self._later(chance.choice(RESTART_AFTER_S), lambda: self._start_broker(broker_id))
        return f"machine of broker-{broker_id}: {how}"

    def _has_recovered(self, broker_id: int) -> bool:
        """Returns True if the broker is in every ISR again and has everything that is committed."""
        world = self._world
        node = world.node(broker_id)
        if node is None or not node.is_serving:
            return False
        for topic_partition in world.topic_partitions:
            if broker_id not in world.replicas_of(topic_partition):
                continue
            state = world.partition_state(topic_partition)
            replica = node.broker.hosted.replicas.get(topic_partition)
            if state is None or replica is None or broker_id not in state.isr:
                return False
            if replica.log.log_end_offset < world.invariants.log(topic_partition).end_offset:
                return False
        return True

    def _pause(self, process: SimProcess | None) -> str | None:
        if process is None or process.is_paused:
            return None
        process.pause()
        for_s = self._chance.random() * MAX_PAUSE_S
        self._later(for_s, process.resume)
        return f"pause {process} for {for_s:.1f} s"

    def _pause_broker(self) -> str | None:
        alive = self._brokers()
        return self._pause(self._world.process(broker_name(self._chance.choice(alive)))) if alive else None

    def _pause_controller(self) -> str | None:
        alive = self._controllers()
        return (
            self._pause(self._world.process(controller_name(self._chance.choice(alive)))) if alive else None
        )

    def _kill_controller(self, controller_id: int | None = None) -> str | None:
        alive = self._controllers()
        if controller_id is None and alive:
            controller_id = self._chance.choice(alive)
        process = None if controller_id is None else self._world.process(controller_name(controller_id))
        if process is None or controller_id is None:
            return None
        self._kill(process)
        self._later(self._chance.choice(RESTART_AFTER_S), lambda: self._world.start_controller(controller_id))
        return f"kill {process}"

    # -- applications

    def _application(self) -> SimProcess | None:
        alive = [name for name in self._all_applications if self._world.is_alive(name)]
        return self._world.process(self._chance.choice(alive)) if alive else None

    def _start_application(self, name: str) -> None:
        assert self._world.applications is not None
        self._world.applications.start_one(name)

    def _kill_application(self) -> str | None:
        process = self._application()
        if process is None:
            return None
        self._kill(process)
        self._later(self._chance.choice(RESTART_AFTER_S), lambda: self._start_application(process.name))
        return f"kill {process}"

    def _pause_application(self) -> str | None:
        return self._pause(self._application())

    # -- coordinators

    def _kill_coordinator(self, coordinator_id: int | None = None) -> str | None:
        alive = self._coordinators()
        if coordinator_id is None and alive:
            coordinator_id = self._chance.choice(alive)
        process = None if coordinator_id is None else self._world.process(coordinator_name(coordinator_id))
        if process is None or coordinator_id is None:
            return None
        self._kill(process)
        self._start_coordinator_later(coordinator_id)
        return f"kill {process}"

    def _start_coordinator_later(self, coordinator_id: int) -> None:
        after_s = self._chance.choice(RESTART_AFTER_S)
        self._later(after_s, lambda: self._world.start_coordinator(coordinator_id))

    def _pause_coordinator(self) -> str | None:
        """Pauses a coordinator, often for so long that its shards have another owner when it continues."""
        alive = self._coordinators()
        if not alive:
            return None
        return self._pause(self._world.process(coordinator_name(self._chance.choice(alive))))

    def _stop_coordinator(self) -> str | None:
        """Sends SIGTERM, then SIGKILL if the coordinator takes too long."""
        alive = self._coordinators()
        if not alive:
            return None
        coordinator_id = self._chance.choice(alive)
        process = self._world.process(coordinator_name(coordinator_id))
        assert process is not None
        stopping = process.spawn(process.service.stop())

        def end() -> None:
            if process.is_alive:
                process.kill()
                self._start_coordinator_later(coordinator_id)

        loop = self._world.loop
        stopping.add_done_callback(lambda _: loop.call_outside(0, end))
        self._later(MAX_PAUSE_S, end)
        return f"stop {process}"

    def _outlive_coordinator(self) -> str | None:
        """Freezes a coordinator until others own its shards, while requests for it wait. Then it continues,
        the others die, and the remaining coordinator reads what both have written.
        """
        world, chance = self._world, self._chance
        alive = self._coordinators()
        if not alive:
            return None
        coordinator_id = chance.choice(alive)
        process = world.process(coordinator_name(coordinator_id))
        assert process is not None
        if process.is_paused:
            return None
        process.pause()
        for_s = world.plan.session_timeout_ms / MS_PER_S * chance.uniform(1.1, 1.6) + chance.uniform(0.3, 1.5)
        self._later(for_s, process.resume)

        def kill_others() -> None:
            for other in self._coordinators():
                if other != coordinator_id and not self._is_healed:
                    self._kill_coordinator(other)

        self._later(for_s + chance.choice((0.05, 0.2, 1.0)), kill_others)
        return f"{process} is frozen for {for_s:.1f} s, the others die when it continues"

    def _isolate_coordinator(self) -> str | None:
        """Isolates a coordinator from all others, or only from the store. It continues to decide while
        another one takes its shards.
        """
        alive = self._coordinators()
        if not alive:
            return None
        name = coordinator_name(self._chance.choice(alive))
        if self._chance.random() < 0.3:
            return self._isolate(name)
        for_s = self._chance.random() * MAX_CUT_S
        self._cut({(name, STORE), (STORE, name)}, for_s)
        return f"cut {name} from the store for {for_s:.1f} s"

    def _hurry_shard_leaders(self) -> str | None:
        partitions = [p for p in self._world.topic_partitions if p.topic != TOPIC]
        return self._hurry(self._chance.choice(partitions))

    # -- network

    def _cut(self, pairs: set[tuple[str, str]], for_s: float) -> None:
        blocked = self._world.network.blocked
        blocked |= pairs
        self._later(for_s, lambda: blocked.difference_update(pairs))

    def _cut_network(self) -> str:
        """Cuts some processes off from the others, in both directions or in one."""
        chance, names = self._chance, self._names()
        one_side = chance.sample(names, chance.randint(1, len(names) // 2))
        other_side = [name for name in names if name not in one_side]
        way = chance.choice(("both", "out", "in"))
        pairs = set()
        for here in one_side:
            for there in other_side:
                if way != "in":
                    pairs.add((here, there))
                if way != "out":
                    pairs.add((there, here))
        for_s = chance.random() * MAX_CUT_S
        self._cut(pairs, for_s)
        return f"cut {way} {one_side} for {for_s:.1f} s"

    def _cut_from_store(self) -> str:
        outside = (STORE, CLIENT, *self._all_applications)
        name = self._chance.choice([name for name in self._names() if name not in outside])
        ways = self._chance.choice((((name, STORE), (STORE, name)), ((name, STORE),), ((STORE, name),)))
        for_s = self._chance.random() * MAX_CUT_S
        self._cut(set(ways), for_s)
        return f"cut {ways} for {for_s:.1f} s"

    def _trouble_network(self) -> str:
        network, chance = self._world.network, self._chance
        network.loss_share = chance.choice((0.0, 0.02, 0.1, 0.3))
        network.duplicate_share = chance.choice((0.0, 0.1, 0.5))
        network.delay_factor = chance.choice((1.0, 5.0, 30.0))

        def end() -> None:
            network.loss_share = network.duplicate_share = 0.0
            network.delay_factor = 1.0

        for_s = chance.random() * MAX_CUT_S
        self._later(for_s, end)
        return (
            f"network loses {network.loss_share}, repeats {network.duplicate_share},"
            f" {network.delay_factor} times as slow for {for_s:.1f} s"
        )

    # -- store and clocks

    def _pause_store(self) -> str | None:
        process = self._world.process(STORE)
        if process is None or process.is_paused:
            return None
        process.pause()
        for_s = self._chance.random() * MAX_STORE_PAUSE_S
        self._later(for_s, process.resume)
        return f"pause the store for {for_s:.1f} s"

    def _end_a_lease(self) -> str | None:
        store = self._world.store
        leases = sorted(store.space.leases())
        if not leases:
            return None
        lease = self._chance.choice(leases)
        held = store.space.keys_of_lease(lease)
        store.expire(lease)
        return f"lease of {held} ends"

    def _set_lease_clock(self) -> str:
        rate = self._chance.choice(LEASE_CLOCK_RATES)
        self._world.store.run_lease_clock(rate)
        return f"the store's lease clock runs {rate} times as fast"

    def _trouble_a_disk(self) -> str:
        """Makes writes fail, some or all of them, for a limited time: the disk is full or about to break."""
        disks = self._world.disks
        broker_id = self._chance.choice(sorted(disks))
        share = self._chance.choice((0.05, 0.3, 1.0))
        disks[broker_id].refusal_share = share
        for_s = self._chance.random() * MAX_CUT_S

        def end() -> None:
            disks[broker_id].refusal_share = 0.0

        self._later(for_s, end)
        return f"disk of broker-{broker_id} refuses {share} of its writes for {for_s:.1f} s"

    def _skew_a_clock(self) -> str | None:
        process = self._world.process(self._chance.choice(self._names()))
        if process is None:
            return None
        process.wall_skew_ms = self._chance.randint(-MAX_SKEW_MS, MAX_SKEW_MS)
        process.clock_rate = self._chance.choice(PROCESS_CLOCK_RATES)
        return f"clock of {process} is {process.wall_skew_ms} ms off, runs {process.clock_rate} times as fast"

    # -- the worst moment

    def _set_trap(self) -> str | None:
        """Sets a trap: the next time that an event of this kind happens, the fault hits its process before
        the next step.
        """
        world, chance = self._world, self._chance
        moment = chance.choice(MOMENTS)
        skip = chance.choice((0, 0, 1, 5))
        until = world.loop.now + TRAP_LASTS_S

        def on_moment(what: str, process: SimProcess) -> None:
            nonlocal skip
            if world.loop.now > until:
                world.on_moment = lambda *_: None
                return
            if what != moment or not process.is_alive:
                return
            if skip:
                skip -= 1
                return
            world.on_moment = lambda *_: None
            world.loop.call_outside(0, self._strike, process, moment)

        world.on_moment = on_moment
        return None

    def _strike(self, process: SimProcess, moment: str) -> None:
        if self._is_healed or not process.is_alive:
            return
        name, _, number = process.name.rpartition("-")
        if name == "broker":
            choices = (
                lambda: self._kill_broker(int(number)),
                lambda: self._crash_machine(int(number)),
                lambda: self._pause(process),
                lambda: self._isolate(process.name),
            )
        elif name == "controller":
            choices = (
                lambda: self._kill_controller(int(number)),
                lambda: self._pause(process),
                lambda: self._isolate(process.name),
            )
        elif name == "coordinator":
            choices = (
                lambda: self._kill_coordinator(int(number)),
                lambda: self._pause(process),
                lambda: self._isolate(process.name),
            )
        else:
            return
        what = self._chance.choice(choices)()
        if what is not None:
            self._note(f"at {moment}: {what}")

    def _hurry_leaders(self) -> str | None:
        """Changes leaders one after the other, while one replica gets no commands from controllers."""
        return self._hurry(self._chance.choice(self._world.topic_partitions))

    def _hurry(self, topic_partition: TopicPartition) -> str | None:
        world, chance = self._world, self._chance
        deaf = broker_name(chance.choice(world.replicas_of(topic_partition)))
        rounds = chance.randint(2, MOST_LEADER_CHANGES)
        pause_s = chance.uniform(*LEADER_CHANGE_S)
        self._cut({(controller_name(c), deaf) for c in world.plan.controllers}, rounds * pause_s)

        def depose() -> None:
            state = world.partition_state(topic_partition)
            if state is not None and not self._is_healed:
                self._end_lease_of(state.leader)

        for number in range(rounds):
            self._later(number * pause_s, depose)
        return f"{rounds} leader changes of {topic_partition} every {pause_s:.1f} s, {deaf} learns of none"

    def _end_lease_of(self, broker_id: int) -> None:
        store = self._world.store
        item = store.space.get(broker_key(broker_id))
        if item is not None:
            self._world.trace.add(self._world.loop.now, "strike", f"lease of {item.key} ends")
            store.expire(item.lease)

    # -- pending ISR changes

    def _await_proposal(self) -> str | None:
        """Delays the write of the next ISR change, and kills the replicas that it relies on in the
        meantime.
        """
        world = self._world
        until = world.loop.now + TRAP_LASTS_S

        def on_proposal(process: SimProcess, topic_partition: TopicPartition, proposal: ProposeIsr) -> None:
            world.on_proposal = lambda *_: None
            if world.loop.now > until or self._is_healed:
                return
            strike = self._strike_expansion if proposal.added else self._strike_shrink
            world.loop.call_outside(0, strike, process, topic_partition, proposal)

        world.on_proposal = on_proposal
        return None

    def _strike_expansion(
        self, process: SimProcess, topic_partition: TopicPartition, proposal: ProposeIsr
    ) -> None:
        """A joining replica loses its disk before the store learns that it has caught up. Then the replica is
        needed.
        """
        joins = proposal.added[0][0]
        others = [b for b in self._world.plan.brokers if b != joins]
        pairs = {(broker_name(joins), broker_name(b)) for b in others}
        self._cut(pairs | {(there, here) for here, there in pairs}, MAX_CUT_S)
        self._cut({(process.name, STORE)}, PROPOSAL_DELAY_S)
        if self._crash_machine(joins) is None:
            self._kill_broker(joins)
        self._note(f"broker {joins} about to join {topic_partition} dies, the store learns of it later")
        self._later(2 * PROPOSAL_DELAY_S, lambda: self._kill_these(others))

    def _strike_shrink(
        self, process: SimProcess, topic_partition: TopicPartition, proposal: ProposeIsr
    ) -> None:
        """The remaining replicas cannot tell the store that others left. They continue for some time
        and die.
        """
        stay = list(proposal.isr)
        self._cut({(broker_name(b), STORE) for b in stay}, PROPOSAL_DELAY_S)
        self._note(f"ISR of {topic_partition} shrinks to {stay}, the store does not learn of it")
        self._later(PROPOSAL_DELAY_S, lambda: self._kill_these(stay))

    def _kill_these(self, brokers: list[int]) -> None:
        if not self._is_healed:
            for broker_id in brokers:
                self._kill_broker(broker_id)

    def _note(self, what: str) -> None:
        self._count += 1
        self._world.trace.add(self._world.loop.now, "fault", what)

    def _isolate(self, name: str) -> str:
        others = [other for other in self._names() if other != name]
        for_s = self._chance.random() * MAX_CUT_S
        pairs = {(name, other) for other in others} | {(other, name) for other in others}
        self._cut(pairs, for_s)
        return f"cut off {name} for {for_s:.1f} s"
