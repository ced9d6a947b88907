"""The metadata store: a contract with etcd's semantics, a store in a file, and (in `etcd`) a store on
etcd.
"""
