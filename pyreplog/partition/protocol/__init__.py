"""The replication protocol of one partition: messages, and state machines without I/O, clock or randomness.

| module | what it holds |
|---|---|
| `partition_state` | the value of a partition's key in the metadata store: leader, epoch, ISR, ELR; the brokers |
| `election` | who becomes leader, as a change of that value; reassignment |
| `leading` | a replica that leads: admits appends, answers fetches, moves the high watermark, changes the ISR |
| `isr` | the ISR as its leader knows it, with the change that is under way; the progress of one follower |
| `watermark` | the high watermark: the end of the committed part of the log |
| `following` | a replica that follows: fetches, truncates, learns the high watermark |
| `replica_log` | a replica's log: its epochs, start, end, and synced end |
| `epochs` | leader epochs in a log: `History` of `stream` with Kafka's questions |
| `producers` | idempotent producers: which batch is new, which one is a duplicate |
| `transactions` | which transactions of a log are open; the last stable offset |
| `record_batch` | Kafka's record batch, version 2: checks it, decodes its header, stamps offset and leader epoch |
| `append_origin` | the origin of an append, and the checks that its records have to pass |
| `fetch_min_bytes` | the position of each partition at which a waiting fetch is checked again |
| `error_codes` | the error codes of requests, with Kafka's names and numbers |
| `messages` | the messages between followers and leaders |
| `effects` | the effects that the machines return |
"""
