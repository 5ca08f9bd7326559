"""RocketMQ's own store and HA classes, on the same machine: `python -m benchmarks.peers.rocketmq`.

Maven fetches them from its default repository, so this is no part of `make bench` or of the tests. It needs mvn and a
JDK (apt-get install maven default-jdk-headless).
"""
