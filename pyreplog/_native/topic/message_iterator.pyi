from collections.abc import Iterator
from typing import final

from pyreplog._native.topic.message import Message

@final
class MessageIterator(Iterator[Message]):
    def __init__(self, *args: object, **kwargs: object) -> None: ...  # raises; iter(MessageBatch) makes it
    def __next__(self) -> Message: ...
