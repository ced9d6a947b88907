"""The metadata store on etcd, with a small etcd client of its own."""
