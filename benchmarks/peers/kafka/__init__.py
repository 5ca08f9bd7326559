"""Kafka, one broker on the same machine, beside the topic server: `python -m benchmarks.peers.kafka`; and MirrorMaker 2
between two of them, beside geo-replication: `python -m benchmarks --only geo-replication --kafka`. Kafka beside our
Kafka listener, with Kafka's own clients: `python -m benchmarks.peers.kafka.beside`.

Maven fetches them from its default repository, so this is no part of `make bench` or of the tests. It needs mvn and a
JDK (apt-get install maven default-jdk-headless), and Kafka's client (pip install --group kafka).
"""
