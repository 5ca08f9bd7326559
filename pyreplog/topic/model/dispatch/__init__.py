"""Delivery of subscriptions: state machines without I/O, clock or randomness.

| module | what it is |
|---|---|
| `dispatcher` | the machine that a subscription's owner talks to: events in, effects out |
| `effects` | what it asks for |
| `reading` | the reads under way, their answers in order, how much is read at once |
| `selector` | which consumer gets which messages: exclusive, failover and shared subscriptions |
| `key_shared_selector`, `keyring` | the same of key_shared ones, with what waits for its key; whose key it is |
| `consumers` | who is attached, with how many permits |
| `pending` | who has which messages without having acknowledged them |
| `replay`, `delayed_delivery_tracker`, `redeliveries` | what comes again: which, when, how often it has, and why |
| `offsets` | arrays of offsets |
| `status` | what it is doing, and what it waits for |
"""
