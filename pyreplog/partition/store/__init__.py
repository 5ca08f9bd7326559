"""The log of a partition's replica on disk.

| module | what it holds |
|---|---|
| `partition_log` | the log, which a leader appends to, and a follower copies its leader's bytes into |
| `epoch_record` | the control record that says which leader epoch begins, and where |
| `high_watermarks` | the file in which a broker keeps up to where each of its logs is committed |
| `replica_directories` | the directories of a broker: which replica lies where, failed disks, what is set aside |
| `log_directories` | what the directories hold, and how much room their disks have |
| `producer_snapshot` | the files beside the segments: producers, transactions, the index of those that were aborted |
| `producer_state_manager` | the producers and transactions of a log, from these files and the log |
| `log_cleaner` | compaction of a log by key |
| `segment_copy` | the digest of a segment, and the file of another replica's segment that takes the place of one |
| `partition_reader` | what a reader of another process learns of a log: high watermark, epochs, transactions |
"""
