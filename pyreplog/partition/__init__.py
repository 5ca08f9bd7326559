"""Partitions: Kafka's replica manager on the commit log. Brokers and clients reach brokers over TCP.

| module or package | what it holds |
|---|---|
| `broker` | a broker: its replicas, as the metadata store says which |
| `replica_manager` | the partitions of a broker: appends, and fetches of consumers and of other brokers |
| `partition` | one replica: its log, the machine of its role, one lock around both |
| `role` | one term of a replica as leader or follower, with the numbers that requests wait for |
| `delayed_produce`, `delayed_fetch`, `delayed_delete_records` | requests that wait in the purgatory |
| `wire`, `client_wire` | what brokers, and clients, send to brokers, as bytes |
| `service`, `client_requests` | who answers that: over TCP; either way, requests of clients |
| `tcp_transport`, `local_transport` | who sends it: over TCP; within one process |
| `replica_fetcher` | sends the fetches of replicas that follow, by a thread for each leader |
| `fetch_session_handler` | decides which fetches the next request to a leader names |
| `catch_up_quota` | bytes per second of the replicas outside of the ISR |
| `fetch_session` | the fetches of followers that their leader has not answered, a session for each broker |
| `partition_status` | partitions, replicas and brokers as rows, for people and metrics |
| `metrics` | numbers of a broker for Prometheus |
| `cleaner_thread` | compacts the partitions of a broker; which batches compacted topics refuse |
| `cleaned_segment_fetcher` | followers take over the segments that their leaders have compacted |
| `log_syncer` | syncs logs whose replicas count what is on their disks, by a few threads |
| `requests` | what appends and fetches take and give |
| `config` | settings of a topic's partitions |
| `topic_partition` | names of partitions; the internal topics |
| `protocol` | what brokers say and decide about one partition: state machines without I/O |
| `store` | the log of a replica on disk |
| `transactions` | the coordinator of transactions: who commits, who is fenced, and the markers that say so |
| `metadata` | what the metadata store keeps of topics, partitions and brokers |
| `client` | a client, for users: topics, producers, reads |
| `controller` | makes partitions of new topics, elects leaders, ends reassignments, replaces brokers, deletes topics |
"""
