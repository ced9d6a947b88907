"""Kubernetes: pods, volumes, resources. From kube-state-metrics, the kubelet and node_exporter."""

# ruff: noqa: E501 - expressions are read whole

from panels import Dashboard, Row, graph, number, table
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
            "Finished jobs left out",
            warn_from=1,
        ),
        number(
            "Restarts",
            "sum(increase(kube_pod_container_status_restarts_total{PODS}[$__range]))",
            "Of containers, in the time shown",
            warn_from=1,
        ),
        number(
            "Fullest volume",
            f"max(1 - kubelet_volume_stats_available_bytes{{{_BROKER_CLAIMS}}}"
            f" / kubelet_volume_stats_capacity_bytes{{{_BROKER_CLAIMS}}})",
            "Share in use",
            unit="percentunit",
            warn_from=0.8,
            bad_from=0.9,
        ),
        number(
            "Pods that may go",
            f'min(kube_poddisruptionbudget_status_pod_disruptions_allowed{{{_OWNED},poddisruptionbudget=~"$release.*"}})',
            "By the least of the disruption budgets: 0 holds up a drain",
            good_from=1,
        ),
        number(
            "Failed jobs",
            f'sum(kube_job_status_failed{{{_OWNED},job_name=~"$release.*"}})',
            "A gate of a roll that gave up, a snapshot that failed",
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
            "Two during a roll",
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
            "A StatefulSet for each broker; controllers and coordinators are Deployments",
        ),
        graph(
            "Restarts",
            {
                "{{pod}} {{container}}": f"sum by (pod, container) (increase(kube_pod_container_status_restarts_total{{PODS}}{_RATE}))"
            },
            "Each one is worth a look at `kubectl logs --previous`",
        ),
        table(
            "Versions",
            {
                "Processes": "count by (service, version, pod) (label_replace(tidelog_build_info{SEL}, "
                '"service", "$1", "exported_service", "(.+)"))'
            },
            "What runs where",
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
            "Cores. A broker uses one and a little: its event loop, and threads for disks and compression",
        ),
        graph(
            "CPU of the limit",
            {
                "{{pod}}": f"sum by (pod) (rate(container_cpu_usage_seconds_total{{{_CONTAINERS}}}{_RATE}))"
                ' / sum by (pod) (kube_pod_container_resource_limits{PODS,resource="cpu"})'
            },
            "Near 1 the kernel throttles it",
            unit="percentunit",
        ),
        graph(
            "Throttled",
            {
                "{{pod}}": f"sum by (pod) (rate(container_cpu_cfs_throttled_periods_total{{{_CONTAINERS}}}{_RATE}))"
                f" / sum by (pod) (rate(container_cpu_cfs_periods_total{{{_CONTAINERS}}}{_RATE}))"
            },
            "Share of the scheduler's periods in which it had to wait; latency suffers long before 1",
            unit="percentunit",
        ),
        graph(
            "Memory",
            {"{{pod}}": f"sum by (pod) (container_memory_working_set_bytes{{{_CONTAINERS}}})"},
            "Working set: what the limit is held against. It has the page cache that is in use",
            unit="bytes",
        ),
        graph(
            "Memory of the limit",
            {
                "{{pod}}": f"sum by (pod) (container_memory_working_set_bytes{{{_CONTAINERS}}})"
                ' / sum by (pod) (kube_pod_container_resource_limits{PODS,resource="memory"})'
            },
            "At 1 the kernel kills it",
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
            "Share of the volume. Growing one: raise `brokers.storage.size` and upgrade",
            unit="percentunit",
        ),
        graph(
            "Full in",
            {
                "{{persistentvolumeclaim}}": f"max by (persistentvolumeclaim) (kubelet_volume_stats_available_bytes{{{_BROKER_CLAIMS}}}"
                f" / clamp_min(-deriv(kubelet_volume_stats_available_bytes{{{_BROKER_CLAIMS}}}[$__rate_interval]), 1))"
            },
            "At the rate of now, if it goes on filling",
            unit="s",
        ),
        graph(
            "Inodes in use",
            {
                "{{persistentvolumeclaim}}": f"max by (persistentvolumeclaim) (kubelet_volume_stats_inodes_used{{{_BROKER_CLAIMS}}}"
                f" / kubelet_volume_stats_inodes{{{_BROKER_CLAIMS}}})"
            },
            "Many small segments use up inodes first",
            unit="percentunit",
        ),
        graph(
            "Disk of the nodes, busy",
            {
                "{{instance}} {{device}}": f'max by (instance, device) (rate(node_disk_io_time_seconds_total{{device!~"loop.*|dm-.*"}}{_RATE}))'
            },
            "Share of the time in which the disk had something to do",
            unit="percentunit",
        ),
        graph(
            "Disk of the nodes, a write takes",
            {
                "{{instance}} {{device}}": "max by (instance, device) (rate(node_disk_write_time_seconds_total"
                f'{{device!~"loop.*|dm-.*"}}{_RATE})'
                f' / clamp_min(rate(node_disk_writes_completed_total{{device!~"loop.*|dm-.*"}}{_RATE}), 0.001))'
            },
            "On average",
            unit="s",
        ),
        graph(
            "Memory of the nodes, available",
            {"{{instance}}": "node_memory_MemAvailable_bytes"},
            "The page cache lives in it: reads of the recent past come from there",
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
