"""The metadata store: etcd's semantics, file-backed when embedded."""
