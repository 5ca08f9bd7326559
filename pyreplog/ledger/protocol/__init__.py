"""BookKeeper's protocol: state machines that take events and return effects, and do no I/O.

| module | holds |
|---|---|
| effects | what they ask for |
| push | batches on their way to an ensemble |
| writer | the writer: adds, ensemble changes, close |
| refusals | answers of bookies that end the writer |
| staging, merging | single entries gathered into batches; adds to one bookie gathered into requests |
| recovery | fencing and closing a ledger whose writer is gone |
| fences, stretch | what bookies say when they are fenced; what they say of a few entries |
| reading, lac | reading entries from replicas; what is confirmed so far |
| copies, entrymend | which copies are there; writing those that are not |
"""
