from collections.abc import Hashable
from typing import Any

from typing_extensions import disjoint_base

@disjoint_base
class PurgatoryBase:
    _inbox: Any
    _lines: Any
    def is_watched(self, *keys: Hashable) -> bool: ...
