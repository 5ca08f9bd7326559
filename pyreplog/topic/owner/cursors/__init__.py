"""Stores what each subscription has acknowledged: the state of its cursor.

| modules | what they are |
|---|---|
| `log` | persists the cursors of all subscriptions of this process, in one ledger that they share |
| `slot` | what a subscription tells the log, and the log asks of it |
| `flush`, `metadata_updates` | what has changed, brought to the ledger, and to the subscriptions' metadata |
| `cursor_ledgers` | the ledgers that cursors are kept in: opened, retired, deleted |
"""
