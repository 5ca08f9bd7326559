"""The commit log: records, segments, appending, reading, waiting.

| file | holds |
|---|---|
| record, attributes, batch | one record, what hangs on it, and many of them as columns |
| segmentheader | the first block of a segment file |
| segment | one mapped segment file |
| sparse | entry number and event time to offset |
| apply_replicated | records of another log's stream, verified where they landed; the commit point |
| append_arguments, appender | the arguments of an append, the append path, and what waits there for a group commit |
| groupbuffer | as above |
| log_view_base | entry number to record |
| log_follower_base | where a follower stands, and the way from its waking up to the record |
| tail | the page a writer shares with readers, and sleeping on it |
| future | the outcome of something submitted, for threads and for tasks of event loops |
| position_waiters | acks of what waits for a group commit |
| gate, group_commit_base | where threads wait for a group commit; one such commit |
| disk | file operations in one go, the GIL released once |
| pwrite | one write, alone or with a sync |
| log_position | places in a log |
| status | status codes turned into exceptions |
"""
