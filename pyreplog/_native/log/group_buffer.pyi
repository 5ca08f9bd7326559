from typing import final

@final
class GroupBuffer: ...
