from typing import TypeVar

_T = TypeVar("_T")

def make_named(kind: type[_T], /, *fields: object) -> _T: ...
