"""What the nodes of a replica group say and decide: messages, and state machines without I/O, clock or randomness.

| modules | what they are |
|---|---|
| `master_machine`, `progress` | the master: who follows, what is committed; how far one replica is; for people |
| `stats` | as above |
| `replica_machine`, `joining` | a replica; whether it fits the log that it wants to follow |
| `election` | how a node becomes master, and how the others answer |
| `async_fallback` | when a master waits for replicas no longer; how much of its log it keeps for them |
| `retention_hold` | as above |
| `terms`, `members` | who was master when, and who is counted; their files |
| `effects` | what the machines ask for |
| `messages`, `fields` | what nodes say to each other; fields of messages and files |
| `log_position` | a place in a log |
"""
