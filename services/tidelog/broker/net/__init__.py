"""The connections of clients: listeners, sockets, TLS, logins, and the order of requests."""
