"""Delivery of subscriptions: state machines without I/O, clock or randomness.

| module | what it holds |
|---|---|
| `dispatcher` | the state machine of a subscription's delivery: events in, effects out |
| `effects` | the effects |
| `reading` | the pending reads, the order of their results, and the size of reads |
| `selector` | chooses consumers for messages: exclusive, failover and shared subscriptions |
| `key_shared_selector` | the same for key_shared subscriptions: owners of keys, and messages that wait for their key |
| `pending` | messages that were delivered and not acknowledged |
| `redelivery` | messages to be delivered again: their times, counts and reasons |
| `offsets` | arrays of offsets |
"""
