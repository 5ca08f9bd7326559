from typing import final

@final
class MessageTable:
    def __init__(self, *args: object, **kwargs: object) -> None: ...  # raises: made by decode_messages
