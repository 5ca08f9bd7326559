"""Kafka clients and tools that others wrote, for tests of the Kafka listener: Maven fetches those in Java."""
