"""The process that owns a topic.

| module | what it holds |
|---|---|
| `topics`, `topic` | the topics of this process; one of them |
| `topic_context` | what the parts of a topic have in common |
| `partitioned_topic` | the same for topics with partitions |
| `ownership` | takes and keeps the ownership of topics; what the metadata store says of an owner |
| `managed` | the messages: a chain of ledgers |
| `cursors` | stores what subscriptions have acknowledged |
| `subscriptions`, `subscription` | the subscriptions of a topic; one of them |
| `locator` | finds the entries of messages that were never delivered |
| `dead_letters` | publishes messages elsewhere that were delivered too often |
| `maintenance` | quotas, expiry, retention, now and then |
| `dedup_cursor` | keeps and restores what deduplication knows of producers |
| `report` | statistics of a topic; metrics of all |
| `delayed_count` | how many messages of a subscription are not due yet |
"""
