"""Requests to bookies for the progress of their scrubs, and to start a scrub."""

from __future__ import annotations

from collections.abc import Collection

from pyreplog.bookie.protocol import Reply, ReplyStatus, Request, RequestKind
from pyreplog.bookie.scrub_report import ScrubReport
from pyreplog.errors import InvalidArgumentError, InvalidMessageError
from pyreplog.future import AppendFuture, set_result
from pyreplog.ledger.protocol.terminal_errors import error_text
from pyreplog.ledger.runtime import RuntimeBase

RATE_MAX = (1 << 32) - 1


def ask_scrubs(
    runtime: RuntimeBase, bookies: Collection[str], *, begin: bool = False, bytes_per_s: int | None = None
) -> dict[str, ScrubReport | str]:
    """Request the scrub reports of bookies concurrently.

    Args:
        runtime: runtime of the cluster.
        bookies: ids of the bookies.
        begin: whether each starts a pass over all its segments; it answers at once.
        bytes_per_s: bytes of segments that each bookie verifies per second in that pass; None: its own setting.

    Returns:
        The report of each bookie, or the error as text: it does not run or answer, or does not know the request. Such a
        bookie does not start a scrub.

    Raises:
        InvalidArgumentError: `bytes_per_s` is out of range.
        ClosedError: the cluster was closed.
    """
    if bytes_per_s is not None and not 1 <= bytes_per_s <= RATE_MAX:
        raise InvalidArgumentError(f"bytes_per_s: expected 1 to {RATE_MAX}, found {bytes_per_s}")
    request = Request(RequestKind.SCRUB, 0, int(begin), 0, limit=bytes_per_s or 0)
    answers = {bookie: _send(runtime, bookie, request) for bookie in bookies}
    return {bookie: _report(runtime.wait(answer)) for bookie, answer in answers.items()}


def _send(runtime: RuntimeBase, bookie: str, request: Request) -> AppendFuture[Reply | Exception]:
    answer: AppendFuture[Reply | Exception] = AppendFuture()
    runtime.expect(answer)

    def answered(reply: Reply | Exception) -> None:
        set_result(answer, reply)

    runtime.send(bookie, request, answered)
    return answer


def _report(reply: Reply | Exception) -> ScrubReport | str:
    if isinstance(reply, Exception):
        return str(reply)
    if reply.status != ReplyStatus.OK:
        return error_text(reply)
    try:
        return ScrubReport.decode(reply.body)
    except InvalidMessageError as error:
        return str(error)
