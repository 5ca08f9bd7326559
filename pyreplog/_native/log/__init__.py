"""The commit log: records, segments, appending, reading, waiting.

| file | holds |
|---|---|
| record, attributes, batch | one record, its attributes, and many records as columns |
| segment_header | the first block of a segment file |
| segment | one mapped segment file |
| sparse | index from entry number and event time to offset |
| apply_replicated | records of another log's stream, verified after they were written; the commit point |
| append_arguments, appender | the arguments of an append, and the append path |
| group_buffer | records that wait for their group commit |
| log_view_base | lookup of a record by entry number |
| log_follower_base | the position of a follower, and waiting for its next record |
| tail_page | the page that a writer shares with readers, and sleeping on it |
| future | the outcome of an append, for threads and for tasks of event loops |
| position_waiters | futures of appends that wait for a group commit |
| gate, group_commit_base | waiting for group commits; one group commit |
| disk | several file operations with one release of the GIL |
| pwrite | one write, alone or with a sync |
| log_position | positions in a log |
| status | exceptions for status codes |
"""
