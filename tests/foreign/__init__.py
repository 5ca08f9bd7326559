"""Kafka clients and tools that others wrote, for tests of the Kafka listener: Maven fetches those in Java.

`python -m tests.foreign` runs Kafka's command-line tools against three brokers that are processes, of which one is killed.
"""
