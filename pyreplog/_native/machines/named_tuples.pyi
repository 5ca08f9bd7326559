from typing import TypeVar

T = TypeVar("T")

def make_named(kind: type[T], /, *fields: object) -> T: ...
