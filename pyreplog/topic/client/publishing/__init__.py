"""The path of a message from `publish` to a sink of entries: a topic's ledgers, or a connection to its owner.

| module | what it holds |
|---|---|
| `publisher`, `producer` | publish to one topic; a producer does so under a name |
| `outgoing`, `delivery_times` | arguments: columns of values and keys; delivery times |
| `sequencer` | admits messages, orders them, sends them, and handles their outcomes in that order |
| `batcher`, `publish_batch` | collects single messages; batches whose order is settled |
| `forwarded` | batches of entries that another process has encoded |
| `replicated_batch` | entries that another cluster replicates into the topic |
| `window` | limits the messages without an outcome |
"""
