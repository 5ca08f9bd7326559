"""Origins: the cluster and topic that a message was published to first, for topics that other clusters replicate into.

This package does no I/O and reads no clock.

| modules | what they hold |
|---|---|
| `origin` | the identity of messages of another cluster: origin, entries, gaps, and a target's position in an origin |
| `gate` | decides which entries of an origin may be stored next |
| `attribute`, `snapshot` | bytes: the record attribute of a replicated entry; the gates of a topic |
| `replicate_to` | the clusters to which the publisher of a message lets it be replicated, and their bytes |
| `position_map` | maps offsets at an origin to offsets in a topic, and back |
| `position_page` | bytes: the positions of one closed ledger |
| `growing_columns` | int64 columns that grow at their end, and are cut at their beginning |
"""
