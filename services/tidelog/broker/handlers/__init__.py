"""The handlers of the APIs that this broker answers. `apis.py` names the one of each API."""
