"""What the metrics' history tells: ISR episodes, lag and when it is gone, retention, skew and a plan
against it.
"""
