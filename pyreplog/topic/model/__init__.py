"""The parts of topics that do no I/O, start no threads and read no clock.

| module | what it holds |
|---|---|
| `config`, `arguments` | settings of topics; checks of arguments |
| `times` | times as arguments: datetimes, and microseconds since 1970 |
| `positions` | start positions of subscriptions; positions as offset, entries and bytes; search for an entry |
| `interfaces` | Protocols between consumers, subscriptions and topics |
| `chain` | the ledgers of a topic, in order |
| `retention`, `backlog` | ledgers that may be deleted, messages that expired; backlog quotas |
| `trend`, `stats` | trends of backlogs; statistics of topics and subscriptions |
| `cursor` | the acknowledgements of a subscription |
| `system_cursor_record` | records of pyreplog's own cursors |
| `dead_letter` | properties of dead letters and of redriven messages; the report of a redrive |
| `dedup`, `producer_snapshot`, `global_producer_snapshot` | deduplication by sequence numbers, and its snapshots |
| `compression` | codecs of entries |
| `routing`, `partitioned_metadata` | topics with partitions |
| `topic_identity` | whether a topic exists, and which creation of its name it is |
| `dispatch` | the delivery of messages to consumers |
| `wire` | the protocol between topic servers and their clients |
"""
