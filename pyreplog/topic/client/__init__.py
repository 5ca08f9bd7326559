"""What applications hold; the same for a topic of this process and for one of a server.

| module | what it holds |
|---|---|
| `topic_like` | `TopicLike`, `ProducerLike`, `ConsumerLike`: topics of all kinds, as types |
| `coroutines` | forms of blocking methods that coroutines await |
| `consumer` | receives messages |
| `redrive` | sends dead letters back to where they come from |
| `publishing` | producers, and the way of a message up to a sink of entries |
| `partitions` | publishing to, and receiving from, several partitions as from one topic |
| `remote` | topics of a server |
"""
