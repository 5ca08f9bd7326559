"""Entries of a cluster: which are read, from which copies, and as what columns.

| modules | what they are |
|---|---|
| `clusterplan` | what is read of a cluster, and by which task |
| `ledgers`, `ledgerends`, `entryslices` | which entries of ledgers; where these end; what a task reads |
| `topics`, `backlogs` | which entries of topics, and of what subscriptions have left |
| `origins`, `storedmetadata`, `storedlog`, `storedbookies` | a cluster in a directory, or over TCP |
| `entryscan`, `copyreading`, `messagearrays` | entries, from whichever copies there are; messages in them |
"""
