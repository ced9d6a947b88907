"""Requests that are traced: the dispatcher that picks them, and what it takes them through.

Only imported where tracing is on; where it is off, requests meet nothing of it.
"""
