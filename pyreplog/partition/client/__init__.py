"""A client of partitions, for users: over TCP, or with brokers of its own process.

| module | what it holds |
|---|---|
| `partition_client` | `PartitionClient`: topics, and what all that follows shares |
| `partitions` | `Partitions`: a topic |
| `partitions_overview` | what `PartitionClient.overview` returns |
| `partition_handle` | `PartitionHandle`: one partition, with the verbs of a log |
| `partition_producer` | `PartitionProducer`: an idempotent producer, with one batch a partition on its way |
| `partition_sender` | the batches of one partition of a producer, tried again until their time is over |
| `leader_requests` | requests to leaders, which the metadata store tells |
| `responses` | error codes as exceptions |
| `timers` | calls that are made later |
"""
