"""Auto-recovery: copies that were lost come back without an operator.

An auditor decides which bookies are gone and places an order for each; workers copy what the orders leave to do. The
work left is never stored: it is the metadata of the ledgers that still name the bookie, so that a bookie which returns
ends the work on it. Every change is a compare-and-set of one ledger's metadata; leases only keep two processes from
doing the same work twice.

| module | what it holds |
|---|---|
| `bookie_index` | which ledgers name which bookie |
| `protocol` | decisions, without I/O, clock or randomness |
"""
