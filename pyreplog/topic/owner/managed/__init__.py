"""Managed ledgers: the messages of a topic, in a chain of ledgers that one owner at a time appends to.

| modules | what they hold |
|---|---|
| `managed_ledger` | takes a topic's chain over, publishes to it, reads it, trims it |
| `chain_store` | keeps the chain in the metadata store, and changes it by compare-and-set |
| `chain_writer`, `append_pipeline` | append entries in order, from ledger to ledger, also after failures |
| `chain_reader` | reads messages from an offset on |
| `entry_reader` | reads whole entries, undecoded |
| `closed_ledger_readers` | reads entries of closed ledgers |
| `ledgers` | creates, closes and deletes ledgers, and finds orphans |
"""
