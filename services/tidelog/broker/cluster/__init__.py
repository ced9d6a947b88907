"""The broker's view of the cluster: metadata, settings, its identity, the connection to the controller."""
