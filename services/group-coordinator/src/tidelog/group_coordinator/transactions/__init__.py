"""Transactions: what the owner of a partition of `__transaction_state` decides."""
