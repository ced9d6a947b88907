"""The I/O of the Kafka client on asyncio. `tidelog.aio` exports its public classes."""
