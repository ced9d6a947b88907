"""The subcommands of `tidelog pipeline`, one module each; Spark is imported when one runs."""
