"""The log of a partition's replica on disk.

| module | what it holds |
|---|---|
| `partition_log` | the log, to which a leader appends, and a follower appends its leader's bytes |
| `epoch_record` | the control record of a leader epoch and its start |
| `high_watermarks` | the file in which a broker keeps the high watermarks of its logs |
| `replica_directories` | the directories of a broker: where each replica lies, failed disks, logs that were set aside |
| `log_directories` | reports of the directories: sizes of replicas, free space of disks |
| `producer_snapshot` | the files beside the segments: producers, transactions, index of aborted transactions |
| `producer_state_manager` | the producers and transactions of a log, from these files and the log |
| `log_cleaner` | compaction of a log by key |
| `segment_copy` | the digest of a segment, and the copy of another replica's segment that replaces one |
| `partition_reader` | a log as readers of other processes see it: high watermark, epochs, transactions |
"""
