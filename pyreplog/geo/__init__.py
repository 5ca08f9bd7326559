"""Geo-replication: topics are sent to other clusters, each message exactly once and in its order.

A message keeps its identity: the cluster and the topic where it was published, and its offset there. A target stores
the identity with the message, so that it refuses what it has, and says after any crash what it lacks.

| module | what it holds |
|---|---|
| `policy` | `ReplicationPolicy`: what is sent to which clusters, and how |
| `policies`, `revision` | policies and orders in the metadata store; the key that tells of their changes |
| `clusters` | the other clusters, and what is needed to connect to them |
| `geo_replication`, `keeper` | `Cluster.geo`; starts and stops replicators, and opens topics that nobody owns |
| `server_registration` | the servers that live, and which of them opens a topic |
| `metrics` | numbers for Prometheus |
| `acks` | replicated subscriptions: state machines that merge what each cluster acknowledged |
| `protocol` | the state machines that send a topic to a target; no I/O |
| `replicator` | replicates one topic to one target |
| `geo_cursor` | the durable cursor of a replicator, which trimming waits for |
| `target_link` | the connection to one target cluster |
| `target_links` | the connections to all target clusters, and the making of replicators on them |
| `subscription_replication` | replicates the durable subscriptions of one topic: drives `acks` |
| `subscription_journal` | what a topic keeps durably of its replicated subscriptions |
| `exchange_connection` | the ordered connection to another cluster about the subscriptions of a topic |
| `topic_positions` | where the messages of all origins are in one topic |
| `replicator_like` | what the keeper needs of the replicator of one topic and one target; its status |
"""
