"""Delivery of subscriptions: state machines without I/O, clock or randomness.

| module | what it is |
|---|---|
| `dispatcher` | the state machine of a subscription's delivery: events in, effects out |
| `effects` | the effects |
| `reading` | the pending reads, their results in order, and how much is read at once |
| `selector` | which consumer gets which messages: exclusive, failover and shared subscriptions |
| `key_shared_selector` | the same for key_shared subscriptions: owners of keys, and messages that wait for their key |
| `pending` | messages that a consumer has and did not acknowledge |
| `redelivery` | messages to be delivered again: when, how often they were, and why |
| `offsets` | arrays of offsets |
"""
