"""Entries and messages of a cluster: which ones a read needs, and reading them as columns from any of their copies.

| modules | what they hold |
|---|---|
| `cluster_slices` | the plan of a read of a cluster |
| `ledgers`, `ledger_ends`, `entry_slices` | the entries of ledgers that a read needs; ends of open ledgers; tasks |
| `topics`, `backlogs` | entries of topics that a read needs; what subscriptions have acknowledged |
| `origin_clusters` | the clusters that messages were replicated from |
| `origins`, `stored_metadata`, `stored_log`, `stored_bookies` | access to a cluster in a directory, or over TCP |
| `entry_scan`, `copy_reading`, `message_arrays` | reading entries from their copies; messages as columns |
"""
