"""The coordinator of consumer groups: Kafka's classic protocol, that of KIP-848, and the offsets that groups commit.

| module | what it holds |
|---|---|
| `group_coordinator` | serves the groups of the partitions of `__consumer_offsets` that this broker leads |
| `group_shard` | the groups of one of these partitions: loads them, appends for them, keeps the partition small |
| `classic_group` | one group of the classic protocol, whose members assign: a state machine without I/O |
| `consumer_group` | one group of KIP-848, for which the broker assigns: likewise |
| `assignors` | pure functions from subscriptions to assignments |
| `reconciliation` | how a member comes from what it has to what it is to have: a pure function |
| `topic_catalog` | what the coordinator needs to know of topics |
| `topic_pattern` | regular expressions by which members subscribe |
| `group_effects` | what the machine asks for |
| `group_offsets` | the offsets of one group: committed ones, and those of open transactions |
| `offset_commits` | appends the offsets of one group, and applies them when they are committed |
| `group_records` | the records of `__consumer_offsets`, with Kafka's schemas |
| `group_status` | groups as rows, for people and metrics: lag in messages and seconds, drain time |
| `group_trends` | where offsets were at earlier scrapes, for metrics |
| `stored_groups`, `groups_overview` | groups of a cluster, from `__consumer_offsets`, for `top` and reports |
| `group_requests` | what the coordinator takes and gives |
| `offsets_log` | what the coordinator needs of the partitions, and how a replica manager gives it |
| `consumer_group_config` | settings |
| `error_codes` | the error codes of groups, with Kafka's numbers |
"""
