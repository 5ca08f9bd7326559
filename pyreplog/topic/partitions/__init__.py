"""Partitioned topics: several topics that user code publishes to and subscribes to as to one.

| modules | what they are |
|---|---|
| `partitionedhandle` | a partitioned topic, wherever its partitions are (other processes: `remote.remotepartitioned`) |
| `partitioned`, `partitionedtopics` | one whose partitions this process owns; those that it has open |
| `partitionedmetadata` | how many partitions it has, in the metadata store |
| `routing`, `splitting` | which partition a message goes to, as in Pulsar; whole batches |
| `partitionedpublisher`, `partitionedproducer` | publishing, and under a name |
| `partitionedconsumer`, `partitionconsumer` | receiving from all partitions, and from one |
| `partitionoffset` | places of messages |
| `partitionedstats` | what is known of all partitions together |
"""
