"""What state machines and those who run them share.

| file | holds |
|---|---|
| effects | what state machines ask for with every message |
| purgatory_base | whether anybody waits for a number |
| serial_executor | steps that one thread at a time takes, and none waits for |
| event_queue | the events of an object, in order |
| named | makes and reads named tuples without running Python code |
| named_tuples | the same for Python code |
"""
