"""A client of partitions, for users: over TCP, or with embedded brokers.

| module | what it holds |
|---|---|
| `partition_client` | `PartitionClient`: topics, and the connections and timers that they share |
| `partitions` | `Partitions`: a topic |
| `partitions_overview` | `PartitionsOverview`: the result of `PartitionClient.overview` |
| `partition_handle` | `PartitionHandle`: one partition, with the methods of a log |
| `partition_producer` | `PartitionProducer`: an idempotent producer, with one batch in flight for each partition |
| `partition_sender` | the batches of one partition of a producer, retried until they time out |
| `leader_requests` | requests to the leaders of partitions, which are read from the metadata store |
| `responses` | error codes as exceptions |
| `timers` | delayed calls |
"""
