"""Partitions in the metadata store: topics, the state of each partition, brokers.

| module | what it holds |
|---|---|
| `topic_metadata` | a topic: its partitions, their number of replicas, and settings |
| `topic_settings` | settings of topics, by the names that Kafka gives them |
| `partition_changes` | requests of operators: reassignments, their cancellation, elections |
| `broker_registration` | a broker: its incarnation, and its address while it is alive |
| `metadata_cache` | a broker's cache of all these keys |
| `state_store` | compare-and-set of the keys of partitions, for state machines that must not block |
| `producer_ids` | ids of producers, in blocks |
| `replica_placement` | chooses the replicas of the partitions of a topic |
| `broker_replacement` | chooses brokers for the replicas of brokers that are permanently dead |

The value of a partition's key is a `PartitionState`, of `pyreplog.partition.protocol`.
"""
