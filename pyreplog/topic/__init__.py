"""Topics: chains of ledgers that producers publish to, cursors that say what each subscription has acknowledged.

| package | what it is |
|---|---|
| `managed` | the messages: a chain of ledgers with one owner |
| `publishing` | the way in: batches, compression, duplicates, order |
| `cursors` | what subscriptions have acknowledged, kept |
| `dispatch` | the way out: who gets which message; state machines without I/O |
| `policies` | quotas, expiry, retention, trends |
| `partitions` | several topics as one |
| `statistics` | what is known of topics |
| `remote` | topics of another process, over TCP |

Here are the handles of user code (`cluster`, `topics`, `topic`, `subscriptions`, `subscription`, `consumer`), and what
is between them and those packages: `inlet` lets consumers be forgotten, `locator` finds what was never delivered.
"""
