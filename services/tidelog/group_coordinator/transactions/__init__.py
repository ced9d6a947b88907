"""The decisions of a transaction coordinator: the owner of a partition of `__transaction_state`."""
