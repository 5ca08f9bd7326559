"""The objects that applications use; the same for a topic of this process and for one of a server.

| module | what it holds |
|---|---|
| `topic_like` | `TopicLike`, `ProducerLike`, `ConsumerLike`: topics of all kinds, as types |
| `coroutines` | the coroutine forms of methods that publish |
| `consumer` | receives messages |
| `redrive` | sends dead letters back to their topics |
| `publishing` | producers, and the path of a message to a sink of entries |
| `partitions` | topics with partitions: publishing and receiving |
| `remote` | topics of a server |
"""
