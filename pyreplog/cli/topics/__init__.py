"""Parts of `topic`.

| modules | what they hold |
|---|---|
| `topicpublish`, `topicconsume` | publishing, and printing messages |
| `messages` | the form in which messages are printed |
| `topicredrive` | sending dead letters back |
| `topicstats` | statistics of topics and subscriptions |
"""
