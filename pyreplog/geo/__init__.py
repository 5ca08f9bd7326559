"""Geo-replication: topics are sent to other clusters, each message exactly once and in its order.

A message keeps its identity: the cluster and the topic where it was published, and its offset there. A target stores
the identity with the message. So it refuses duplicates, and after any crash it reports its position in each origin.

| module | what it holds |
|---|---|
| `policy` | `ReplicationPolicy`: which messages are sent to which clusters, and how |
| `policies`, `revision` | policies and orders in the metadata store; the key that tells of their changes |
| `clusters` | the other clusters, with addresses and credentials |
| `geo_replication` | `GeoReplication`: `Cluster.geo`, for operators |
| `replicator_manager` | starts and stops replicators as the policies demand, and opens topics without an owner |
| `server_registration` | the live servers, and which of them opens a topic |
| `metrics` | metrics for Prometheus |
| `acks` | replicated subscriptions: state machines that merge the acknowledgements of all clusters |
| `protocol` | the state machines that send a topic to a target; no I/O |
| `replicator` | replicates one topic to one target |
| `geo_cursor` | the durable cursor of a replicator, which trimming waits for |
| `mismatch` | what differs between a topic and its copy, and has to be changed in one of the clusters |
| `target_link` | the connection to one target cluster |
| `target_links` | the connections to all target clusters; makes the replicators that use them |
| `subscription_replication` | replicates the durable subscriptions of one topic: drives `acks` |
| `subscription_readiness` | `SubscriptionReadiness`: the effect of a fail-over of one subscription |
| `stored_subscriptions` | the replicated subscriptions that the metadata name, for those whose owner tells nothing |
| `origin_entries` | reads an entry of another cluster, to compare it with a neighbour's |
| `planned_handover` | a planned handover of one subscription: its time limits and status |
| `subscription_journal` | the durable records of a topic's replicated subscriptions |
| `exchange_connection` | the ordered connection to another cluster about the subscriptions of a topic |
| `neighbours` | the other clusters of a topic with replicated subscriptions, and the connection to each |
| `subscription_handovers` | the planned handovers of the subscriptions of a topic |
| `subscription_report` | the readiness and the positions of replicated subscriptions, for operators |
| `topic_positions` | maps the offsets of all origins to offsets in one topic, and back |
| `position_pages` | stored positions of closed ledgers, so that an opening does not read their entries |
| `replicator_status` | the status of a replicator |
"""
