"""The commands that run a service, and the tools for what a service needs."""
