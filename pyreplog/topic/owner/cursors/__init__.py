"""Stores the cursors of subscriptions: what each has acknowledged.

| modules | what they hold |
|---|---|
| `log` | persists the cursors of all subscriptions of this process, in one ledger that they share |
| `slot` | the interface between a subscription and the log |
| `flush`, `metadata_updates` | write changes to the ledger, and to the metadata of subscriptions |
| `cursor_ledgers` | opens, retires and deletes the ledgers that hold cursors |
"""
