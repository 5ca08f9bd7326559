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
is between them and those packages:

| modules | what they are |
|---|---|
| `event_queue`, `dispatchdriver` | steps, taken by whoever finds nobody at work; those of a dispatcher |
| `interfaces`, `weak_consumer` | what is between a consumer and its subscription; lets consumers be forgotten |
| `locator` | finds what was never delivered |
| `deadletters` | messages that were delivered too often |
| `permits`, `fair_lock` | how many messages a consumer asks for; turns of those who wait for one |
| `owner`, `ownership` | who serves a topic; taking and keeping that |
| `names`, `topic_position`, `positions` | names and keys of topics; places in one; what people say of them |
| `config`, `arguments` | settings of topics and subscriptions; what callers give, checked |
"""
