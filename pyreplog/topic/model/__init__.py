"""What topics are made of, without I/O, threads or clocks.

| module | what it holds |
|---|---|
| `names`, `config`, `arguments` | names and keys of topics; their settings; checks of what callers pass |
| `times` | times that callers give: datetimes, and microseconds since 1970 |
| `positions` | where a subscription may start; places in a topic as offset, entry and bytes; entries by offset |
| `interfaces` | Protocols between consumers, subscriptions and topics |
| `chain` | the ledgers of a topic, in order |
| `retention`, `backlog` | which ledgers may go; which messages are too old; when a quota is used up |
| `trend`, `stats` | how fast a backlog shrinks; the numbers that topics and subscriptions report |
| `cursor`, `cursor_record`, `cursor_pages` | what a subscription has acknowledged; the same as records and pages |
| `subscription_metadata` | what the metadata store keeps of a durable subscription |
| `dead_letter` | properties of dead letters, and of messages that were sent back; how many were |
| `dedup`, `producer_snapshot` | sequence numbers: those that callers give; which messages were published before |
| `compression` | codecs of entries |
| `routing`, `partitioned_metadata` | topics with partitions |
| `dispatch` | who gets which message next |
| `wire` | the protocol between topic servers and their clients |
| `event_queue`, `fair_lock` | runs events one at a time; a lock that is first come, first served |
"""
