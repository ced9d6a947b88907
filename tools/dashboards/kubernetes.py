"""The dashboard of Kubernetes: pods, volumes and resources, from kube-state-metrics, the kubelet and
node_exporter.
"""

# ruff: noqa: E501 - expressions are read whole

from panels import Column, Dashboard, Row, graph, number, table
from variables import OF_RELEASES

_RATE = "[$__rate_interval]"
_BROKER_CLAIMS = 'namespace=~"$namespace",persistentvolumeclaim=~".*$release.*"'
_CONTAINERS = 'PODS,container!="",container!="POD"'
_OWNED = 'namespace=~"$namespace"'

_GLANCE = Row(
    "At a glance",
    [
        number("Pods ready", 'sum(kube_pod_status_ready{PODS,condition="true"})', "Of this release"),
        number(
            "Pods not ready",
            'sum(kube_pod_status_ready{PODS,condition="false"}) - sum(kube_pod_status_phase{PODS,phase="Succeeded"})',
            "Pods of finished Jobs are not counted",
            warn_from=1,
        ),
        number(
            "Restarts",
            "sum(increase(kube_pod_container_status_restarts_total{PODS}[$__range]))",
            "Restarts of containers in this time range",
            warn_from=1,
        ),
        number(
            "Fullest volume",
            f"max(1 - kubelet_volume_stats_available_bytes{{{_BROKER_CLAIMS}}}"
            f" / kubelet_volume_stats_capacity_bytes{{{_BROKER_CLAIMS}}})",
            "Used share of the fullest volume",
            unit="percentunit",
            warn_from=0.8,
            bad_from=0.9,
        ),
        number(
            "Allowed disruptions",
            f'min(kube_poddisruptionbudget_status_pod_disruptions_allowed{{{_OWNED},poddisruptionbudget=~"$release.*"}})',
            "Smallest disruption budget; at 0, drains wait",
            good_from=1,
        ),
        number(
            "Failed jobs",
            f'sum(kube_job_status_failed{{{_OWNED},job_name=~"$release.*"}})',
            "Examples: a roll that timed out, a snapshot that failed",
            bad_from=1,
        ),
        number(
            "Last etcd snapshot",
            f'min(time() - kube_cronjob_status_last_successful_time{{{_OWNED},cronjob=~"$release.*"}})',
            "Ago",
            unit="s",
            warn_from=86_400,
        ),
        number(
            "Versions",
            "count(count by (version) (tidelog_build_info{SEL}))",
            "There are two during a roll",
            warn_from=2,
        ),
    ],
)

_PODSS = Row(
    "Pods",
    [
        graph(
            "Ready",
            {
                "{{statefulset}}": f'max by (statefulset) (kube_statefulset_status_replicas_ready{{{_OWNED},statefulset=~"$release.*"}})',
                "{{deployment}}": f'max by (deployment) (kube_deployment_status_replicas_available{{{_OWNED},deployment=~"$release.*"}})',
            },
            "Each broker is a StatefulSet; controllers and coordinators are Deployments",
        ),
        graph(
            "Restarts",
            {
                "{{pod}} {{container}}": f"sum by (pod, container) (increase(kube_pod_container_status_restarts_total{{PODS}}{_RATE}))"
            },
            "Examine each restart with `kubectl logs --previous`",
        ),
        table(
            "Versions",
            {
                "Processes": "count by (service, version, pod) (label_replace(tidelog_build_info{SEL}, "
                '"service", "$1", "exported_service", "(.+)"))'
            },
            "Pods and their nodes",
            {"Processes": Column()},
            width=8,
        ),
    ],
)

_RESOURCES = Row(
    "CPU and memory",
    [
        graph(
            "CPU",
            {"{{pod}}": f"sum by (pod) (rate(container_cpu_usage_seconds_total{{{_CONTAINERS}}}{_RATE}))"},
            "Cores. A broker uses slightly more than one: its event loop, and threads for disks and compression",
        ),
        graph(
            "CPU relative to the limit",
            {
                "{{pod}}": f"sum by (pod) (rate(container_cpu_usage_seconds_total{{{_CONTAINERS}}}{_RATE}))"
                ' / sum by (pod) (kube_pod_container_resource_limits{PODS,resource="cpu"})'
            },
            "Near 1, the kernel throttles the pod",
            unit="percentunit",
        ),
        graph(
            "Throttled",
            {
                "{{pod}}": f"sum by (pod) (rate(container_cpu_cfs_throttled_periods_total{{{_CONTAINERS}}}{_RATE}))"
                f" / sum by (pod) (rate(container_cpu_cfs_periods_total{{{_CONTAINERS}}}{_RATE}))"
            },
            "Share of the scheduler's periods in which the pod had to wait; latency increases long before 1",
            unit="percentunit",
        ),
        graph(
            "Memory",
            {"{{pod}}": f"sum by (pod) (container_memory_working_set_bytes{{{_CONTAINERS}}})"},
            "Working set, which the limit applies to. It includes active page cache",
            unit="bytes",
        ),
        graph(
            "Memory relative to the limit",
            {
                "{{pod}}": f"sum by (pod) (container_memory_working_set_bytes{{{_CONTAINERS}}})"
                ' / sum by (pod) (kube_pod_container_resource_limits{PODS,resource="memory"})'
            },
            "At 1, the kernel kills the pod",
            unit="percentunit",
        ),
        graph(
            "Network",
            {
                "{{pod}} in": f"sum by (pod) (rate(container_network_receive_bytes_total{{PODS}}{_RATE}))",
                "{{pod}} out": f"sum by (pod) (rate(container_network_transmit_bytes_total{{PODS}}{_RATE}))",
            },
            "Everything: clients, replication, scrapes",
            unit="Bps",
        ),
    ],
)

_VOLUMES = Row(
    "Volumes",
    [
        graph(
            "In use",
            {
                "{{persistentvolumeclaim}}": f"max by (persistentvolumeclaim) (1 - kubelet_volume_stats_available_bytes{{{_BROKER_CLAIMS}}}"
                f" / kubelet_volume_stats_capacity_bytes{{{_BROKER_CLAIMS}}})"
            },
            "Used share of the volume. To expand it, raise `brokers.storage.size` and upgrade",
            unit="percentunit",
        ),
        graph(
            "Time until full",
            {
                "{{persistentvolumeclaim}}": f"max by (persistentvolumeclaim) (kubelet_volume_stats_available_bytes{{{_BROKER_CLAIMS}}}"
                f" / clamp_min(-deriv(kubelet_volume_stats_available_bytes{{{_BROKER_CLAIMS}}}[$__rate_interval]), 1))"
            },
            "At the current rate",
            unit="s",
        ),
        graph(
            "Inodes in use",
            {
                "{{persistentvolumeclaim}}": f"max by (persistentvolumeclaim) (kubelet_volume_stats_inodes_used{{{_BROKER_CLAIMS}}}"
                f" / kubelet_volume_stats_inodes{{{_BROKER_CLAIMS}}})"
            },
            "Many small segments exhaust inodes first",
            unit="percentunit",
        ),
        graph(
            "Node disks, utilization",
            {
                "{{instance}} {{device}}": f'max by (instance, device) (rate(node_disk_io_time_seconds_total{{device!~"loop.*|dm-.*"}}{_RATE}))'
            },
            "Share of the time in which the disk was busy",
            unit="percentunit",
        ),
        graph(
            "Node disks, write latency",
            {
                "{{instance}} {{device}}": "max by (instance, device) (rate(node_disk_write_time_seconds_total"
                f'{{device!~"loop.*|dm-.*"}}{_RATE})'
                f' / clamp_min(rate(node_disk_writes_completed_total{{device!~"loop.*|dm-.*"}}{_RATE}), 0.001))'
            },
            "Mean time of a write",
            unit="s",
        ),
        graph(
            "Node memory, available",
            {"{{instance}}": "node_memory_MemAvailable_bytes"},
            "Includes page cache, from which consumers read recent records",
            unit="bytes",
        ),
    ],
)

DASHBOARD = Dashboard(
    "tidelog-kubernetes",
    "tidelog / Kubernetes",
    "Pods, volumes, CPU and memory; from kube-state-metrics, the kubelet and node_exporter.",
    OF_RELEASES,
    [_GLANCE, _PODSS, _RESOURCES, _VOLUMES],
)
