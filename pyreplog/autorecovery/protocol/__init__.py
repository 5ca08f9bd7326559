"""Decisions of auto-recovery: plain functions and state machines without I/O, clock or randomness.

| module | what it decides |
|---|---|
| `absence` | decides which bookies are away, lost or back, and which need their copies replicated again |
| `member_change` | replaces a bookie by another in a fragment that is already written |
| `member_ends` | asks the members of a ledger's last fragment for its last entry and LAC |
| `open_ledger_watch` | decides whether a ledger may be recovered, because its writer is gone |
| `priority` | counts the copies left of a ledger; those with the fewest are copied first |
| `rebalance` | plans moves of copies from full bookies to empty ones, and out of single racks |
| `rack_windows` | counts the racks of the copies of an entry |
| `effects` | effects of the state machines of this package |
| `copy_check` | checks whether the members of a closed ledger hold all entries, and the same |
| `ledger_replicator` | moves the copies of some bookies in one ledger to others, which prove that they hold them |
| `member_repair` | copies to a member of a ledger the entries that it lacks |
| `stripe_copy` | copies the entries of one member of a fragment to another bookie, or to the member itself |
| `entry_ranges` | ranges of entry numbers with a step |
"""
