"""What brokers say and decide about one partition: messages, and state machines without I/O, clock or randomness.

| module | what it holds |
|---|---|
| `partition_state` | the value of a partition's key in the metadata store: leader, epoch, ISR, ELR; the brokers |
| `election` | who becomes leader, as a change of that value; reassignment |
| `leading` | a replica that leads: admits appends, answers fetches, moves the high watermark, changes the ISR |
| `isr` | the ISR as its leader knows it, with the change that is under way; how far one follower is |
| `watermark` | up to where the log is committed |
| `following` | a replica that follows: fetches, truncates, learns the high watermark |
| `replica_log` | a replica's log: its epochs, where it begins and ends, what is synced |
| `epochs` | leader epochs in a log: `History` of `stream` with Kafka's questions |
| `producers` | idempotent producers: which batch is new, which one is a duplicate |
| `transactions` | which transactions of a log are open; the last stable offset |
| `record_batch` | Kafka's record batch, version 2: its checks, its head, offset and epoch stamped into it |
| `append_origin` | who appends, and which checks the records have to pass |
| `fetch_min_bytes` | at which position of each partition a fetch that waits is looked at again |
| `error_codes` | the error codes of requests, with Kafka's names and numbers |
| `messages` | what followers and leaders say to each other |
| `effects` | what the machines ask for |
"""
