"""A cluster of real processes on this machine: `tidelog cluster up|status|down|...`."""
