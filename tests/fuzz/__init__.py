"""Sends mutated requests to a broker and checks that it survives them."""
