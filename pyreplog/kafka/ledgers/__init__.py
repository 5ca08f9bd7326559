"""Topics on ledgers, which a Kafka listener serves beside the partitions of its broker.

| module | what it holds |
|---|---|
| `topics` | the topics that a listener serves; waits for them in an event loop of its own |
| `partition` | one partition: publishing, reading, searching and waiting |
| `requests` | the outcomes of requests, without the modules of topics |
| `records` | Kafka's records as messages, and back |
| `producer_sequences` | which batches of an idempotent producer are stored |
"""
