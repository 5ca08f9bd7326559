"""Threads are daemons: a program that has forgotten to close something ends nevertheless."""

from __future__ import annotations

import ast

from tests.trees import ROOT


def test_each_thread_is_a_daemon() -> None:
    calls = [
        (path.name, call)
        for path in (ROOT / "pyreplog").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("threading.Thread", "Thread")
    ]
    assert calls, "no thread is found"
    for name, call in calls:
        options = {option.arg: ast.unparse(option.value) for option in call.keywords}
        assert options.get("daemon") == "True", f"{name}:{call.lineno}"
