"""What the nodes of a replica group say and decide: messages, and state machines without I/O, clock or randomness.

| modules | what they are |
|---|---|
| `master_machine`, `replica_progress` | the master (see `_native/ha/commit_point`); how far one replica is |
| `stats` | as above |
| `replica_machine`, `joining` | a replica; whether it fits the log that it wants to follow |
| `election` | how a node becomes master, and how the others answer |
| `async_fallback` | when a master waits for replicas no longer; how much of its log it keeps for them |
| `retention_hold` | as above |
| `members` | the members of a group, and their file |
| `effects` | what the machines ask for |
| `messages` | what nodes say to each other |
| `client_messages` | what clients and nodes say to each other |
| `append_session` | a client's batches: in which order they are sent, and what their outcomes mean |
"""
