"""A cluster of real processes on this machine, for `tidelog cluster up|status|down|...`."""
