"""Of `topic`.

| modules | what they are |
|---|---|
| `topicpublish`, `topicconsume` | what publishes, and what prints messages |
| `messages` | how a message is printed |
| `topicredrive` | what sends dead letters back |
| `topicstats` | what is told of topics and subscriptions |
"""
