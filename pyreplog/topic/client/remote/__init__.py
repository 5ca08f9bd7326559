"""Topics of a server, over TCP.

| module | what it holds |
|---|---|
| `client` | `connect`, and the `Client` that it returns |
| `connection_pool` | connections to servers; finds the owner of a topic |
| `remote_topic` | `RemoteTopic`, `RemotePartitionedTopic` |
| `sender` | sends entries to the owner, and again after a lost connection |
| `remote_subscription` | a consumer's subscription at the owner, attached again after a lost connection |
"""
