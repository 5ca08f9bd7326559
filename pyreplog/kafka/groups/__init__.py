"""The group coordinator: Kafka's classic protocol, the protocol of KIP-848, and committed offsets of groups.

| module | what it holds |
|---|---|
| `group_coordinator` | serves the groups of the partitions of `__consumer_offsets` that this broker leads |
| `group_shard` | the groups of one of these partitions: loads and stores them, and limits the size of the partition |
| `classic_group` | a state machine for one group of the classic protocol, in which a member computes the assignment |
| `consumer_group` | a state machine for one group of KIP-848, for which the broker computes the assignment |
| `assignors` | functions from subscriptions to assignments |
| `reconciliation` | a function from a member's current assignment to its next one |
| `topic_catalog` | the coordinator's interface to topics |
| `topic_pattern` | regular expressions with which members subscribe |
| `group_effects` | effects of the state machines |
| `group_offsets` | the offsets of one group: committed offsets, and those of open transactions |
| `offset_commits` | appends the offsets of one group, and applies them when they are committed |
| `group_records` | the records of `__consumer_offsets`, with Kafka's schemas |
| `group_status` | groups as rows, for tables and metrics: lag in messages and seconds, drain time |
| `group_trends` | samples of offsets at earlier scrapes, for the rates of metrics |
| `stored_groups`, `groups_overview` | groups of a cluster, from `__consumer_offsets`, for `top` and reports |
| `group_requests` | requests and results of the coordinator |
| `offsets_log` | the coordinator's interface to the partitions, and its implementation |
| `consumer_group_config` | settings of the coordinator |
| `error_codes` | error codes of failed appends for clients |
"""
