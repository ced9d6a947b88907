"""Analyses of the metrics' history: ISR episodes, lag with its estimated end, retention, and skew with a plan
that removes it.
"""
