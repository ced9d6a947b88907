"""ACLs, quotas and the audit log: which client may do something, and how much of it."""
