"""What a ledger's writer and its driver do for every append: bases of the Python classes that have the rest.

| file | holds |
|---|---|
| driver_base | a state machine's events and effects |
| pending_adds_base | batches of entries on their way to the bookies of an ensemble |
| staging | single entries that wait while others are on their way |
| ledger_base | what a ledger does for every append |
| ledger_writer_base | what a ledger's writer does for every append |
| remote_runtime_base | what a client of bookies elsewhere does for every append |
"""
