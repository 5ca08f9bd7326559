"""A consistent copy of a live log, and a log made from it under a new identity.

| file | holds |
|---|---|
| copying | taking a backup |
| restoring | making a log from one |
| manifest | what a backup says of itself |
"""
