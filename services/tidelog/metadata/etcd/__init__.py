"""The metadata store on etcd: an own small client and the store on top of it."""
