"""BookKeeper itself, on the same machine: `python -m benchmarks.peers.bookkeeper`.

Maven fetches it from its default repository, so this is no part of `make bench` or of the tests. It needs mvn and a JDK
(apt-get install maven default-jdk-headless). BookKeeper's own benchmark program (bookkeeper-benchmark) is not among the
artifacts there; src/main/java puts the same load on with its client.
"""
