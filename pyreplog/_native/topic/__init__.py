"""Messages in entries, and acknowledgements of subscriptions.

| file | holds |
|---|---|
| rows | sorted rows of integers, millions of them |
| ranges, rangeset | ranges of offsets in such rows, and sets of them |
| varint | variable-length numbers |
| ackstate, ackset | the acknowledgements of a subscription, with exact counts: state machine, Python class |
| messagefields, messageencoder | encode messages into entries: the fields besides keys and values, and all of it |
| messageentry, message, messagecolumns | decode entries: tables of entries, one message, columns of messages |
| messages, messageiterator | batches of messages, and their iterators |
| prefetch_buffer | single messages from batches, for consumers |
| murmur, partitioning | hashes of keys, which choose the partitions of messages; selected rows of columns |
"""
