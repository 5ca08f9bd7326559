"""Delivery of subscriptions: state machines without I/O, clock or randomness.

| module | what it is |
|---|---|
| `dispatcher` | the machine that a subscription's owner talks to: events in, effects out |
| `effects` | what it asks for |
| `delivery` | what it keeps: the way of messages from reading to a consumer, and back |
| `selector`, `single_active_selector`, `round_robin_selector` | who gets which messages, by type |
| `key_shared_selector` | as above |
| `keyring`, `blocked_messages` | of key_shared: whose key it is; what waits for its key, or its key's consumer |
| `consumers` | who is attached, with how many permits |
| `pending` | who has which messages without having acknowledged them |
| `pendingranges` | the same, where all messages go to one consumer |
| `replay`, `delayed_delivery_tracker`, `redeliveries` | what comes again: which, when, how often it has |
| `reading`, `readahead`, `readsize` | the reads under way, their answers in order, how much is read at once |
| `offsets` | arrays of offsets |
| `status` | what it is doing, and what it waits for |
"""
