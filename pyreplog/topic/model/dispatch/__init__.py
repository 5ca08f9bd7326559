"""Delivery of subscriptions: state machines without I/O, clock or randomness.

| module | what it is |
|---|---|
| `dispatcher` | the machine that a subscription's owner talks to: events in, effects out |
| `effects` | what it asks for |
| `reading` | the reads under way, their answers in order, how much is read at once |
| `selector` | which consumer gets which messages: exclusive, failover and shared subscriptions |
| `key_shared_selector` | the same of key_shared ones, with what waits for its key; whose key it is |
| `pending` | who has which messages without having acknowledged them |
| `redelivery` | what comes again: which, when, how often it has, and why |
| `offsets` | arrays of offsets |
"""
