"""What the metadata store keeps of partitions: topics, the state of each partition, brokers.

| module | what it holds |
|---|---|
| `topic_metadata` | a topic: its partitions, their number of replicas, and settings |
| `topic_settings` | settings of topics, by the names that Kafka gives them |
| `partition_changes` | orders of operators: reassignments, cancels of them, elections |
| `broker_registration` | a broker: its incarnation, and its address while it lives |
| `metadata_cache` | all of it, as one broker follows it |
| `state_store` | compare-and-set of the keys of partitions, for state machines that must not wait |
| `producer_ids` | ids of producers, in blocks |
| `replica_placement` | which brokers replicate the partitions of a topic |
| `broker_replacement` | which brokers take the replicas of those that are dead for good |

The value of a partition's key is a `PartitionState`, of `pyreplog.partition.protocol`.
"""
