"""What a master and its replicas do for every append.

| file | holds |
|---|---|
| parking | where threads wait for the commit point of a replica group, one in the lead |
| loop_batches | acks of what event loops' tasks submit to a replica group, by the rounds of their loops |
| reports | the reports of a replica group's replicas, as bytes |
| group_base | what the master of a replica group does for every report |
| client_batch | batches of a client of a replica group: encoded, verified and appended, parsed |
| progress | the offsets that a RocketMQ slave reports |
"""
