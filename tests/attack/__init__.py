"""Attacks on one broker by a client that needs no permission, and what they do to everyone else."""
