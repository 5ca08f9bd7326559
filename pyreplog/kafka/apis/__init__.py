"""The APIs of Kafka's protocol, each a function from a request to a response, or to a future of it.

| module | APIs |
|---|---|
| `registry` | which function serves which API |
| `context` | what the functions share |
| `api_versions` | ApiVersions |
| `metadata` | Metadata, DescribeCluster |
| `produce`, `fetch` | Produce, Fetch |
| `list_offsets` | ListOffsets, OffsetForLeaderEpoch |
| `topics` | CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords |
| `refusals` | error codes for changes that are refused |
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
| `leaders`, `topic_names` | which partitions exist, and who leads them; which names topics may have |
"""
