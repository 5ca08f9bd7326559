"""Client quotas: bytes per second that clients may produce and fetch, and the time that their requests may take.

| module | what it holds |
|---|---|
| `client_quotas` | quotas in the metadata store, and the choice of the one that applies to a client |
| `quota_manager` | what clients have used, and their throttle times |
| `quota_follower` | watches the quotas in the metadata store |
"""
