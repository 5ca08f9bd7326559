from collections.abc import Callable

from typing_extensions import disjoint_base

from pyreplog._native.machines.serial_executor import SerialExecutor

@disjoint_base
class EventQueue(SerialExecutor):
    def post(self, event: Callable[[], object], /) -> None: ...
