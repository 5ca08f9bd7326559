"""Messages in entries, and what subscriptions have acknowledged.

| file | holds |
|---|---|
| rows | sorted rows of integers, millions of them |
| ranges, rangeset | ranges of offsets in such rows, and sets of them |
| varint | numbers in as few bytes as they need |
| ackstate, ackset | what a subscription has acknowledged, with exact counts: the machine, and its face towards Python |
| messagefields, messageencoder | messages into entries: what they carry besides keys and values, and all of it |
| messageentry, message, messagecolumns | entries into messages: where they lie, one, many gathered |
| messages, messageiterator | batches of them, and what gives them in turn |
| prefetch_buffer | batches into single messages for consumers |
| murmur, spread | hashes of keys; columns of some rows, for what goes to several places |
"""
