"""Of `topic`.

| modules | what they are |
|---|---|
| `topicpublish`, `topicconsume` | what publishes, and what prints messages |
| `messages` | how a message is printed |
| `topicstats` | what is told of topics and subscriptions |
"""
