"""The producer on asyncio."""
