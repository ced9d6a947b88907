"""Tables of the metrics' history: samples, ISR episodes, and skew with a plan that removes it."""
