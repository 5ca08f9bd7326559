"""Partitions: Kafka's replica manager on the commit log. Brokers and clients reach brokers over TCP.

| module or package | what it holds |
|---|---|
| `broker` | a broker: opens and removes its replicas according to the metadata store |
| `replica_manager` | the partitions of a broker: appends, and fetches of consumers and of other brokers |
| `partition` | one replica: its log, the state machine of its role, and their lock |
| `role` | one term of a replica as leader or follower, with the positions that requests wait for |
| `delayed_produce`, `delayed_fetch`, `delayed_delete_records` | requests that wait in the purgatory |
| `wire`, `client_wire` | encoding of the requests of brokers and of clients to brokers |
| `service`, `client_requests` | answer requests: over TCP; requests of clients on both transports |
| `tcp_transport`, `local_transport` | send requests: over TCP; within one process |
| `replica_fetcher` | sends the fetches of followers, in a thread for each leader |
| `fetch_session_handler` | decides which fetches the next request to a leader names |
| `catch_up_quota` | bytes per second of the replicas outside of the ISR |
| `fetch_session` | unanswered fetches of followers at their leader, a session for each broker |
| `partition_status` | partitions, replicas and brokers as rows, for reports and metrics |
| `metrics` | metrics of a broker for Prometheus |
| `cleaner_thread` | compacts the partitions of a broker; checks batches of compacted topics |
| `cleaned_segment_fetcher` | copies the segments that leaders have compacted, for followers |
| `producer_snapshot_fetcher` | copies producer snapshots of other replicas, for replicas that have lost their own |
| `broker_answers` | waits for the answers of other brokers |
| `log_syncer` | syncs logs of topics with `requires_sync`, in a few threads |
| `requests` | parameters and results of appends and fetches |
| `config` | settings of a topic's partitions |
| `topic_partition` | names of partitions; the internal topics |
| `protocol` | the replication protocol of one partition: state machines without I/O |
| `store` | the log of a replica on disk |
| `transactions` | the transaction coordinator: commits and aborts transactions, fences producers, writes markers |
| `metadata` | topics, partitions and brokers in the metadata store |
| `client` | a client, for users: topics, producers, reads |
| `controller` | creates partitions, elects leaders, completes reassignments, replaces brokers, deletes topics |
"""
