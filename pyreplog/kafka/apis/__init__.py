"""The APIs of Kafka's protocol: each is a function from a request to a response, or to a future of one.

| module | APIs |
|---|---|
| `registry` | the table of API functions |
| `context` | state that the functions share |
| `api_versions` | ApiVersions |
| `metadata` | Metadata, DescribeCluster |
| `produce`, `fetch` | Produce, Fetch |
| `mixed_fetch` | a fetch that waits for partitions of brokers and for topics on ledgers |
| `read_replicas` | the replica in the rack of a consumer, for Fetch |
| `list_offsets` | ListOffsets, OffsetForLeaderEpoch |
| `topics` | CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords |
| `refusals` | error codes of refused changes |
| `client_quotas` | DescribeClientQuotas, AlterClientQuotas |
| `configs` | DescribeConfigs, AlterConfigs, IncrementalAlterConfigs |
| `acls` | DescribeAcls, CreateAcls, DeleteAcls |
| `log_dirs` | DescribeLogDirs |
| `describe_transactions` | DescribeTransactions, ListTransactions, DescribeProducers |
| `transactions` | InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit |
| `authentication` | SaslHandshake, SaslAuthenticate |
| `elections` | ElectLeaders |
| `reassignments` | AlterPartitionReassignments, ListPartitionReassignments |
| `find_coordinator` | FindCoordinator |
| `consumer_groups` | ConsumerGroupHeartbeat, ConsumerGroupDescribe |
| `groups` | JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups, ListGroups, DeleteGroups |
| `offsets` | OffsetCommit, OffsetFetch, OffsetDelete |
| `leaders`, `topic_names` | partitions and their leaders; Kafka's rules for topic names |
"""
