"""The Kafka client for threads. It runs the client on asyncio in a thread of its own (ADR 0056)."""
