"""Backups: consistent copies of live logs, and the restore of a log with a new identity.

| file | holds |
|---|---|
| copying | taking a backup |
| restoring | making a log from a backup |
| manifest | Manifest: the description of a backup |
"""
