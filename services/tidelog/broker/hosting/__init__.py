"""The replicas of a broker: how they are opened, lead, follow, are kept and closed."""
