"""Replication between brokers: what a follower does to have its leaders' logs, what a leader does about its
ISR.
"""
