from typing import final

@final
class MessageTable:
    def __init__(self, *args: object, **kwargs: object) -> None: ...  # raises; decode_messages makes it
