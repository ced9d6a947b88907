"""Clocks, the timing wheel and the purgatory of delayed operations."""
