"""Strongly connected components of a directed graph, and a shortest cycle within one."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

N = TypeVar("N", bound=Hashable)


def cyclic_components(graph: Mapping[N, Iterable[N]]) -> Iterator[set[N]]:
    """Iterate over the components of at least two nodes (Tarjan's algorithm, without recursion)."""
    index: dict[N, int] = {}
    low: dict[N, int] = {}
    stack: list[N] = []
    on_stack: set[N] = set()
    for root in graph:
        if root in index:
            continue
        path = [(root, iter(graph.get(root, ())))]
        while path:
            node, following = path[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack.add(node)
            for other in following:
                if other not in index:
                    path.append((other, iter(graph.get(other, ()))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    component = {stack.pop()}
                    while node not in component:
                        component.add(stack.pop())
                    on_stack -= component
                    if len(component) > 1:
                        yield component


def shortest_cycle(graph: Mapping[N, Iterable[N]], component: set[N]) -> list[N]:
    """Return the nodes of a shortest cycle through some node of a component."""
    start = next(iter(component))
    before: dict[N, N] = {}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for other in graph.get(node, ()):
            if other == start:
                cycle = [node]
                while cycle[-1] != start:
                    cycle.append(before[cycle[-1]])
                return cycle[::-1]
            if other in component and other not in before:
                before[other] = node
                queue.append(other)
    raise AssertionError("a component has a cycle through each of its nodes")
