"""The process that owns a topic.

| module | what it holds |
|---|---|
| `topics`, `topic` | the topics of this process; one topic |
| `topic_context` | the objects that the parts of a topic share |
| `partitioned_topic` | topics with partitions |
| `ownership` | claims topics under a lease; the owner of a topic in the metadata store |
| `managed` | the messages: a chain of ledgers |
| `subscriptions`, `subscription` | the subscriptions of a topic; one subscription |
| `locator` | finds the entries of messages that were never delivered |
| `dead_letters` | publishes messages that were delivered too often to another topic |
| `maintenance` | quotas, expiry and retention, checked periodically |
| `system_cursors` | the cursors of pyreplog's own on a topic, and those that are stored only |
| `snapshot_cursor` | a system cursor whose records are whole snapshots of a state |
| `dedup_cursor` | stores and restores the producers that deduplication knows |
| `origins` | what other clusters replicate into a topic |
| `report` | statistics of a topic; metrics of all |
| `delayed_count` | counts the delayed messages of a subscription |
"""
