"""Parts of `topic`.

| modules | what they hold |
|---|---|
| `topic_publish`, `topic_consume` | publishing, and printing messages |
| `messages` | the form in which messages are printed |
| `topic_redrive` | sending dead letters back |
| `topic_stats` | statistics of topics and subscriptions |
"""
