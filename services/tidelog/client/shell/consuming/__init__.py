"""Consumers on asyncio, and their calls to brokers and coordinators."""
