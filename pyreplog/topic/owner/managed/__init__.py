"""Managed ledgers: the messages of a topic, in a chain of ledgers that one owner at a time appends to.

| modules | what they are |
|---|---|
| `managedledger` | the whole: publishes to, reads and trims a topic's chain |
| `chainstore` | keeps the chain in the metadata store, and changes it by compare-and-set |
| `takeover` | becoming the owner: nobody else can change the chain, then its last ledger gets an end |
| `chainwriter`, `append_pipeline` | entries on their way from ledger to ledger, in order, whatever becomes of these |
| `chainreader`, `entryreader` | messages from an offset on; the entries of closed ledgers |
| `ledgers` | ledgers made ahead of their need, ended, and deleted, also those that no chain came to name |
| `jobs` | calls that block, one at a time per topic, by the cluster's workers |
| `managedstats` | how a managed ledger stands |
"""
