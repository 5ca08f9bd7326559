"""Replicated subscriptions: their state is exact in every cluster, each acknowledgement included.

State machines and values without I/O, clock or randomness. A subscription is known by what it acknowledged, as offsets
at the origins of the messages, so that states of different clusters can be merged in any order, any number of times.

| module | what it holds |
|---|---|
| `origin_ranges` | sets of messages, by origin and offset there |
| `subscription_state` | what is acknowledged in a subscription; generations, homes, and how states merge |
| `lifecycle` | a subscription's life under one name: births, deletion, tombstones |
| `messages` | what clusters send each other about subscriptions, as bytes |
| `journal` | what a cluster keeps of it durably |
| `effects` | what the state machines ask for |
| `digests` | comparing acknowledgements of an origin without sending them |
| `peer` | what one neighbour lacks, and what is on its way to it |
| `exchange` | `SubscriptionExchange`: the state machine of all replicated subscriptions of one topic |
| `early_acks` | acknowledgements that arrive before their messages |
| `translation` | offsets in a local topic to offsets at origins, and back |
| `handover` | a planned change of the cluster that consumers of a subscription use |
| `readiness` | what a fail-over would lose or repeat now |
| `where` | the position of a subscription at each origin |
"""
