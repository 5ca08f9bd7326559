from collections.abc import Callable

from pyreplog._native.machines.serial_executor import SerialExecutor

class EventQueue(SerialExecutor):
    def __init__(self) -> None: ...
    def post(self, event: Callable[[], object], /) -> None: ...
