"""Entries and messages of a cluster: which ones a read needs, and reading them as columns from any of their copies.

| modules | what they hold |
|---|---|
| `cluster_slices` | the plan of a read of a cluster |
| `ledgers`, `ledgerends`, `entryslices` | entries of ledgers that a read needs; ends of open ledgers; parts for tasks |
| `topics`, `backlogs` | entries of topics that a read needs; what subscriptions have acknowledged |
| `originclusters` | the clusters that messages were replicated from |
| `origins`, `storedmetadata`, `storedlog`, `storedbookies` | access to a cluster in a directory, or over TCP |
| `entryscan`, `copyreading`, `messagearrays` | reading entries from their copies; messages as columns |
"""
