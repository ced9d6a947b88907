"""Table, ledger and log reconciled: nothing lost, nothing doubled, each hole explained."""
