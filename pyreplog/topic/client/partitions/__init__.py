"""Several partitions as one topic, wherever each is owned.

| module | what it holds |
|---|---|
| `partitioned_handle` | what topics with partitions have in common |
| `topic_like` | the methods of topics that it uses |
| `partitioned_publisher`, `partitioned_producer` | publishes to all partitions; the same under a producer's name |
| `splitting` | cuts a batch by partition |
| `partitioned_consumer`, `partition_consumer` | receives from all partitions; from one of them |
"""
