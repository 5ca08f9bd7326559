"""A bookie: a storage node that keeps the entries of many ledgers in one log.

| module | what it holds |
|---|---|
| `protocol` | requests and replies, and their bytes |
| `bookie` | `Bookie`: the state machine and its rules |
| `ledger_state`, `ledger_state_cache` | the state of one ledger; a cache of these states |
| `admission` | checks which requests are allowed |
| `failures` | the reply to a request when the log fails |
| `reading`, `duplicates` | three-valued reads; entries that arrive a second time |
| `holdings` | the entries that a bookie has, and a digest of them |
| `controls`, `limbo` | control records: keys, fences, explicit LACs, limbo; ledgers that enter and leave limbo |
| `commit_group` | replies that wait for the next sync |
| `long_polls` | requests that wait for a LAC |
| `disk_space` | read-only mode for lack of space |
| `entry_log` | `EntryLog`: the interface of the log; `DiskLog`: the log on a disk |
| `ledger_log`, `multi_ledger_log` | `LedgerLog`: entries of many ledgers in one log; the commit log under it |
| `ledger_map`, `entry_locations` | the segments of each ledger's entries; reads entries from known locations |
| `config` | `BookieConfig` |
| `local_bookie` | `LocalBookie`: a bookie in this process, for any thread |
| `identity`, `opening` | the identity of a bookie's directory; opens a bookie, after a crash with limbo |
| `salvage` | makes a log with damaged or missing segments openable, and lists the damage |
| `registration` | the bookie's key in the metadata store while it runs |
| `bookie_state` | the states of bookies in the metadata store: away, lost, draining or retired |
| `ledger_list`, `collector` | the ledgers that exist; garbage collection of deleted ones |
| `surplus` | finds copies that no metadata assign to this bookie, and decides that they are dead |
| `dead_entries`, `live_entries` | dead entries; the log without them |
| `scrub`, `scrub_state` | verifies the segments on the disk, and has damage repaired; the state of that |
| `scrub_report` | the reports of a bookie on its scrub |
| `segment_check` | verifies one segment |
| `key_verifier` | verifies unknown ledger keys with the metadata |
| `service` | serves a bookie over TCP |
| `counts`, `metrics` | counters; metrics for Prometheus |
| `node` | a bookie process |
"""
