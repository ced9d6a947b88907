"""Compares table, ledger and log: no record may be lost or duplicated, and each hole must be explained."""
