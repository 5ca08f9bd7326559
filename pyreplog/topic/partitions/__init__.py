"""Partitioned topics: several topics that user code publishes to and subscribes to as to one.

| modules | what they are |
|---|---|
| `partitioned`, `partitionedtopics` | a partitioned topic; those that this process has open |
| `partitionedmetadata` | how many partitions it has, in the metadata store |
| `routing`, `splitting` | which partition a message goes to, as in Pulsar; whole batches |
| `partitionedpublisher`, `partitionedproducer` | publishing, and under a name |
| `partitionedconsumer`, `partitionconsumer` | receiving from all partitions, and from one |
| `partitionoffset` | places of messages |
| `partitionedstats` | what is known of all partitions together |
"""
