"""Managed ledgers: the messages of a topic, in a chain of ledgers that one owner at a time appends to.

| modules | what they are |
|---|---|
| `managedledger` | the whole: takes a topic's chain over, publishes to it, reads it, trims it |
| `chainstore` | keeps the chain in the metadata store, and changes it by compare-and-set |
| `chainwriter`, `append_pipeline` | entries on their way from ledger to ledger, in order, whatever becomes of these |
| `chainreader` | messages from an offset on; the entries of closed ledgers |
| `ledgers` | ledgers made ahead of their need, ended, and deleted, also those that no chain came to name |
"""
