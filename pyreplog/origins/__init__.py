"""Origins: the cluster and topic that a message was published to first, for topics that others replicate into.

This package does no I/O and reads no clock.

| modules | what they hold |
|---|---|
| `origin` | the identity of messages of another cluster: origin, entries, gaps, and what of an origin is stored |
| `gate` | decides which entries of an origin may be stored next |
| `attribute`, `snapshot` | bytes: the record attribute of a replicated entry; the gates of a topic |
| `position_map` | where the messages of an origin are in a topic, and back |
"""
