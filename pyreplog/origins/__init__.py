"""Origins: the cluster and topic that a message was published to first, for topics that others replicate into.

This package does no I/O and reads no clock.

| modules | what they hold |
|---|---|
| `origin` | the identity of messages of another cluster: origin, entries, gaps, and what of an origin is stored |
"""
