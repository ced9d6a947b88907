"""Chooses the pods of a role. The choice is separate from the queries to the cluster."""

from __future__ import annotations

import random

from chaoslib.exceptions import ActivityFailed

from tidelog_chaos.kube import Pod, Release

ROLES = (
    "leader",
    "follower",
    "broker",
    "controller",
    "standby-controller",
    "group-coordinator",
    "etcd",
)
Replicas = dict[int, tuple[int, list[int]]]


def pods_of(release: Release, role: str, count: int, topic: str) -> list[Pod]:
    """Returns `count` different pods of this role. `leader` and `follower` refer to one partition of the
    topic.
    """
    if role in ("leader", "follower"):
        return brokers_of(release.replicas(topic), release.pods("broker"), role, count)
    if role in ("controller", "standby-controller"):
        active = release.active_controller()
        pods = release.pods("controller")
        found = [pod for pod in pods if (pod.name == active) == (role == "controller")]
    elif role in ROLES:
        found = release.pods(role)
    else:
        raise ActivityFailed(f"no such role: {role}; one of {', '.join(ROLES)}")
    if len(found) < count:
        raise ActivityFailed(f"{len(found)} pods are {role}, not {count}")
    return random.sample(found, count)


def brokers_of(replicas: Replicas, pods: list[Pod], role: str, count: int) -> list[Pod]:
    """Returns brokers of a random partition: its leader first, or only its followers."""
    led = {partition: found for partition, found in replicas.items() if found[0] >= 0}
    if not led:
        raise ActivityFailed("no partition has a leader")
    leader, all_ids = led[random.choice(sorted(led))]
    followers = [broker for broker in all_ids if broker != leader]
    random.shuffle(followers)
    ids = ([leader, *followers] if role == "leader" else followers)[:count]
    found = [pod for broker in ids for pod in pods if pod.broker_id == broker]
    if len(found) < count:
        raise ActivityFailed(f"brokers {ids} have {len(found)} pods, not {count}")
    return found
