"""Several partitions as one topic, wherever each is owned.

| module | what it holds |
|---|---|
| `partitioned_handle` | what topics with partitions have in common |
| `partition_topic` | the methods of topics that it uses |
| `partitioned_producer` | publishes, a batch cut by partition, with or without a producer name |
| `partitioned_consumer` | receives from all partitions, by a consumer of each |
"""
