"""Actions and probes of the experiments in deploy/chaos, for `chaos run` on any cluster that kubectl reaches.

Every action returns a list of events: the action, its target and its time on this machine's clocks. Events
are also appended, one JSON object a line, to the file that TIDELOG_CHAOS_EVENTS names.
"""
