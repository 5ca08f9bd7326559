"""`make_named` makes what a constructor makes."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from pyreplog._native.machines.named_tuples import make_named
from pyreplog.errors import WrongTypeError


class Pair(NamedTuple):
    first: Any
    second: Any = None


def test_make_named_equals_the_constructor() -> None:
    item = object()
    pair = make_named(Pair, item, [])
    assert type(pair) is Pair
    assert pair == Pair(item, [])
    assert pair._replace(second=5) == (item, 5)
    assert make_named(Pair, 1, pair).second is pair


@pytest.mark.parametrize("kind", [int, list, object])
def test_other_classes_are_refused(kind: type) -> None:
    with pytest.raises(WrongTypeError, match=kind.__name__):
        make_named(kind, 1)
