"""The checks of chaos runs as a Spark job, for long histories: `python -m chaoslab.spark_checker`."""
