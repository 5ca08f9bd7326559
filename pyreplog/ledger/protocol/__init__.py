"""BookKeeper's protocol as state machines, which take events, return effects, and do no I/O.

| module | what it holds |
|---|---|
| `effects` | the effects that a machine returns |
| `pending_adds` | batches on their way to an ensemble |
| `writer` | the writer: adds, ensemble changes, close |
| `terminal_errors` | replies of bookies that end the writer |
| `staging`, `add_merger` | single entries gathered into batches; ADDs to one bookie merged into requests |
| `recovery` | fences and closes a ledger whose writer is gone |
| `fence_replies`, `entry_range` | the replies of fenced bookies; their replies about a range of entries |
| `ledger_read_op`, `lac` | reads entries from the copies; asks for the last add confirmed |
| `copies`, `entry_repair` | checks which copies exist; writes a copy again |
"""
