"""Several partitions as one topic, wherever each is owned.

| module | what it holds |
|---|---|
| `partitioned_handle` | base of topics with partitions |
| `partition_topic` | the methods of a partition's topic that are used |
| `partitioned_producer` | publishes, and splits batches by partition, with or without a producer name |
| `partitioned_consumer` | receives from all partitions, with one consumer for each |
"""
