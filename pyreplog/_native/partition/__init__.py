"""What a broker does for every append to a partition.

| file | holds |
|---|---|
| partition_base | the append of a leader, from the checks that need the log to the response |
| partition_log_base | appends of a leader to its log |
| producer_states_base | the last batches of idempotent producers, and the check of another one |
| producer_state_manager_base | what a record batch changes in the state of the producers |
| leading_replica_base | the high watermark of a leader |
| replica_role_base | the numbers that requests read and wait for |
"""
