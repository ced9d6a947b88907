"""Quarantine: records that cannot be read are kept in a topic with the reason, and can be put back later."""
