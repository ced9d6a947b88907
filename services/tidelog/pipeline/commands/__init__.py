"""The subcommands of `tidelog pipeline`, one module each. A subcommand imports Spark when it runs."""
