"""Cursors: what each subscription has acknowledged, and where that is kept.

| modules | what they are |
|---|---|
| `cursor` | what one subscription has acknowledged, what is left for it, what is to be written of that; pure |
| `record`, `pages` | a cursor's state as records, and those of several cursors as entries (FORMAT.md) |
| `log`, `logconfig` | persists the cursors of all subscriptions of this process, in one ledger that they share |
| `slot`, `storedcursor` | what a subscription hands to the log |
| `flush`, `metadata_updates` | what has changed, brought to the ledger, and to the subscriptions' metadata |
| `cursor_ledgers`, `sweep` | the ledgers that cursors are kept in: opened, retired, deleted |
| `history` | what cursor ledgers say, read when subscriptions are opened |
| `subscriptionmetadata` | what the metadata store keeps of a durable subscription |
"""
