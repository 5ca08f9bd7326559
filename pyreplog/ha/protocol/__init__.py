"""The protocol of replica groups: messages, and state machines without I/O, clock or randomness.

| module | what it holds |
|---|---|
| `master_machine` | the state machine of a master; its base is `_native/ha/commit_point` |
| `replica_progress` | the progress of one replica, as its master knows it |
| `stats` | the state of a group |
| `replica_machine` | the state machine of a replica |
| `joining` | checks whether a replica may follow a log, and where it resumes |
| `election` | the state machine of a candidate, and the votes of other nodes |
| `async_fallback` | when a master stops waiting for replicas |
| `retention_hold` | how much of the log a node keeps for replicas that lag |
| `members` | the members of a group, and their file |
| `effects` | what the state machines ask their drivers to do |
| `messages` | messages between nodes |
| `client_messages` | messages between clients and nodes |
| `append_session` | the state machine of a client that appends |
"""
