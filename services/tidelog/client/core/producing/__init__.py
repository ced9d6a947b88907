"""Decisions of the producer: which records form a batch, and when a batch is sent, and sent again."""
