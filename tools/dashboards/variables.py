"""The choices above the dashboards."""

from panels import Variable

OF_RELEASES = (
    Variable("namespace", "namespace", "tidelog_build_info", "Namespace of the release"),
    Variable("release", "release", "tidelog_build_info", "Helm's release"),
)
BROKER = Variable("broker", "broker", "kafka_server_replicamanager_partitioncount", "Brokers by id")
TOPIC = Variable("topic", "topic", "kafka_topic_partitions", "Topics")
GROUP = Variable("group", "consumergroup", "kafka_consumergroup_members", "Consumer groups")
SHARE_GROUP = Variable("group", "group", "tidelog_share_group_unfinished_records", "Share groups")
INSTANCE = Variable("instance", "instance", "tidelog_build_info", "Address of the metrics endpoint")
