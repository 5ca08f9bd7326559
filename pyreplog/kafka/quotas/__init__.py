"""Quotas of clients: how many bytes a second they may produce and fetch, and how much time their requests may take.

| module | what it holds |
|---|---|
| `client_quotas` | quotas in the metadata store, and which of them counts for a client |
| `quota_manager` | what clients have used, and for how long they are muted |
| `quota_follower` | the quotas of the metadata store, as a listener follows them |
"""
