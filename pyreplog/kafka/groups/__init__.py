"""The coordinator of consumer groups: Kafka's classic protocol, and the offsets that groups commit.

| module | what it holds |
|---|---|
| `group_coordinator` | serves the groups of the partitions of `__consumer_offsets` that this broker leads |
| `group_shard` | the groups of one of these partitions: loads them, appends for them, keeps the partition small |
| `classic_group` | one group: a state machine without I/O |
| `group_effects` | what the machine asks for |
| `group_offsets` | the offsets of one group: committed ones, and those of open transactions |
| `group_records` | the records of `__consumer_offsets`, with Kafka's schemas |
| `group_status` | groups as rows, for people and metrics: lag in messages and seconds, drain time |
| `group_trends` | where offsets were at earlier scrapes, for metrics |
| `stored_groups`, `groups_overview` | groups of a cluster, from `__consumer_offsets`, for `top` and reports |
| `group_requests` | what the coordinator takes and gives |
| `offsets_log` | what the coordinator needs of the partitions, and how a replica manager gives it |
| `consumer_group_config` | settings |
| `error_codes` | the error codes of groups, with Kafka's numbers |
"""
