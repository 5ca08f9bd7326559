"""Several partitions as one topic, wherever each is owned.

| module | what it holds |
|---|---|
| `partitioned_handle` | what topics with partitions have in common |
| `partition_topic` | the methods of topics that it uses |
| `partitioned_publisher`, `partitioned_producer` | publishes, a batch cut by partition; the same under a name |
| `partitioned_consumer` | receives from all partitions, by a consumer of each |
"""
