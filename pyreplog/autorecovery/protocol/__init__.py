"""Decisions of auto-recovery: plain functions and state machines without I/O, clock or randomness.

| module | what it decides |
|---|---|
| `absence` | which bookies are away, lost or back, and whose copies are to be made again |
| `member_change` | one bookie takes the place of another in a fragment that is already written |
| `member_ends` | how far a ledger goes, as each member of its last fragment knows it |
| `open_ledger_watch` | whether a ledger that is not closed may be recovered, because its writer is gone |
| `priority` | which ledgers are copied first: those with the fewest copies left |
| `rebalance` | which copies are moved from full bookies to empty ones, and out of single racks |
| `rack_windows` | in how many racks the copies of an entry are |
| `effects` | what state machines of this package ask for |
| `copy_check` | whether the members of a closed ledger hold what they should, and the same |
| `ledger_replicator` | moves the copies of some bookies in one ledger to others, once these prove that they hold them |
| `member_repair` | gives a member of a ledger the copies that it lacks |
| `stripe_copy` | copies what one member of a fragment should hold to another bookie, or to itself |
| `entry_ranges` | ranges of entry numbers with a step |
"""
