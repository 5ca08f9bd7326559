"""What a ledger's writer and its driver do for every append: bases of the Python classes that have the rest.

| file | holds |
|---|---|
| driving | a state machine's events and effects |
| pushing | batches of entries on their way to the bookies of an ensemble |
| staging | single entries that wait while others are on their way |
| appending | what a ledger does for every append |
| writing | what a ledger's writer does for every append |
| remotes | what a client of bookies elsewhere does for every append |
"""
