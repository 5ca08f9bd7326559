"""Replicated subscriptions: their state is exact in every cluster, down to each acknowledgement.

State machines and values without I/O, clock or randomness. The state of a subscription is its acknowledgements, as
offsets at the origins of the messages, so that states of different clusters can be merged in any order, any number of
times.

| module | what it holds |
|---|---|
| `origin_ranges` | sets of messages, by origin and offset there |
| `subscription_state` | the acknowledgements of a subscription; generations, homes, and how states merge |
| `lifecycle` | a subscription's life under one name: births, deletion, tombstones |
| `messages` | the messages between clusters about subscriptions, as bytes |
| `journal` | the durable records of a cluster about subscriptions |
| `effects` | the effects that the state machines return |
| `digests` | compares acknowledgements of an origin by digests |
| `peer` | the items that one neighbour lacks, and those in flight to it |
| `histories` | compares the histories of origins of third clusters with one neighbour |
| `removed_messages` | the messages that no cluster stores any more |
| `exchange` | `SubscriptionExchange`: the state machine of all replicated subscriptions of one topic |
| `early_acks` | acknowledgements that arrive before their messages |
| `translation` | translates offsets in a topic to offsets at origins, and back |
| `handover` | a planned change of the cluster that delivers a subscription |
| `readiness` | the messages that a fail-over would lose or repeat now |
| `subscription_position` | the position of a subscription at each origin |
"""
