"""What every service runs on: settings, timers, purgatory, logs, metrics."""
