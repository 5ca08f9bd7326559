"""The way of a message from `publish` to a sink of entries: a topic's ledgers, or a connection to its owner.

| module | what it holds |
|---|---|
| `publisher`, `producer` | publishes to one topic; the same under a producer's name |
| `outgoing`, `delivery_times` | what callers pass: columns of values and keys; when messages may be delivered |
| `sequencer` | admits messages, gives them their order, sends them, and learns their outcomes in that order |
| `batcher`, `publish_batch` | messages that wait for company; messages whose order is settled, until their outcome |
| `forwarded` | entries that another process has encoded |
| `window` | how much may be without an outcome |
"""
