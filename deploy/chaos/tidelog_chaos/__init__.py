"""Actions and probes of the experiments beside it, for `chaos run` on any cluster that kubectl reaches.

Every action returns a list of events: what was done to what, and when by this machine's clocks. They are
also appended, one JSON object a line, to the file that TIDELOG_CHAOS_EVENTS names.
"""
