"""What a broker does for every append to a partition.

| file | holds |
|---|---|
| partition_base | an append of a leader that is alone, from the log to the response |
| leader_base | what its machine, its role and its producers note of that |
| partition_log_base | appends of a leader to its log |
"""
