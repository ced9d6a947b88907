"""The tools for topics, settings, groups, transactions, users and ACLs."""
