"""Subscriptions as they are stored: their metadata, and their cursors, which say what each has acknowledged.

This package knows no messages: a cursor is a record of bytes, whose owner packs and unpacks it.

| modules | what they hold |
|---|---|
| `cursor_log` | persists the cursors of all subscriptions of this process, in one ledger that they share |
| `cursor_persister` | the interface between a subscription and the log |
| `cursor_flusher` | writes changes to the ledger; then acknowledgements are durable |
| `metadata_updates` | writes changes to the metadata of subscriptions |
| `cursor_ledgers` | opens, retires and deletes the ledgers that hold cursors |
| `cursor_record`, `cursor_pages` | acknowledgements as records; records of several cursors in one entry |
| `subscription_metadata`, `subscription_config` | a durable subscription in the metadata store; its settings |
"""
