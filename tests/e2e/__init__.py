"""The chart on a real cluster: installed, used, killed, upgraded (`make e2e`)."""
