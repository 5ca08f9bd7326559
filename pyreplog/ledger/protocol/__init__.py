"""BookKeeper's protocol: state machines that take events and return effects, and do no I/O.

| module | holds |
|---|---|
| effects | what they ask for |
| pending_adds | batches on their way to an ensemble |
| writer | the writer: adds, ensemble changes, close |
| terminal_errors | answers of bookies that end the writer |
| staging, add_merger | single entries gathered into batches; adds to one bookie gathered into requests |
| recovery | fencing and closing a ledger whose writer is gone |
| fence_replies, entry_range | what bookies say when they are fenced; what they say of a few entries |
| ledger_read_op, lac | reading entries from replicas; what is confirmed so far |
| copies, entry_repair | which copies are there; writing those that are not |
"""
