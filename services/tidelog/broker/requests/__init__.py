"""The way of a request from its bytes to its handler, and the requests that wait."""
