"""Stores the cursors of subscriptions: what each has acknowledged.

| modules | what they hold |
|---|---|
| `cursor_log` | persists the cursors of all subscriptions of this process, in one ledger that they share |
| `cursor_persister` | the interface between a subscription and the log |
| `cursor_flusher` | writes changes to the ledger; then acknowledgements are durable |
| `metadata_updates` | writes changes to the metadata of subscriptions |
| `cursor_ledgers` | opens, retires and deletes the ledgers that hold cursors |
"""
