"""The parts of topics that do no I/O, start no threads and read no clock.

| module | what it holds |
|---|---|
| `config`, `arguments` | settings of topics; checks of arguments |
| `times` | times as arguments: datetimes, and microseconds since 1970 |
| `positions` | where a subscription may start; positions as offset, entries and bytes; search for an entry |
| `interfaces` | Protocols between consumers, subscriptions and topics |
| `chain` | the ledgers of a topic, in order |
| `retention`, `backlog` | which ledgers may be deleted; which messages are too old; when a quota is used up |
| `trend`, `stats` | how fast a backlog shrinks; the numbers that topics and subscriptions report |
| `cursor` | the acknowledgements of a subscription |
| `system_cursor_record` | records of pyreplog's own cursors |
| `dead_letter` | properties of dead letters and of redriven messages; the report of a redrive |
| `dedup`, `producer_snapshot`, `global_producer_snapshot` | sequence numbers; which messages were published before |
| `compression` | codecs of entries |
| `routing`, `partitioned_metadata` | topics with partitions |
| `dispatch` | which consumer gets which message next |
| `wire` | the protocol between topic servers and their clients |
"""
