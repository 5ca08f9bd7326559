"""Messages in entries, and acknowledgements of subscriptions.

| file | holds |
|---|---|
| rows | sorted rows of integers, millions of them |
| ranges, range_set | ranges of offsets in such rows, and sets of them |
| varint | variable-length numbers |
| wire_fields | fields of messages between clients and topic servers |
| ack_state, ack_set | the acknowledgements of a subscription, with exact counts: state machine, Python class |
| message_fields, message_encoder | encode messages into entries: the fields besides keys and values, and all of it |
| message_entry, message, message_columns | decode entries: tables of entries, one message, columns of messages |
| messages, message_iterator | batches of messages, and their iterators |
| prefetch_buffer | single messages from batches, for consumers |
| murmur, partitioning | hashes of keys, which choose the partitions of messages; selected rows of columns |
"""
