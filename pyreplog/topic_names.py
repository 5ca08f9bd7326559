"""Names of topics, and their keys in the metadata store."""

from __future__ import annotations

from urllib.parse import quote, unquote

from pyreplog.arguments import check_text
from pyreplog.errors import InvalidArgumentError

TOPICS = "/topics"
NAME_BYTES_MAX = 200
_KEY_MAX = 255


def check_name(name: str, what: str = "name") -> str:
    """Return a name if it is valid: 1 to 200 bytes of UTF-8, at most 255 when quoted, without control characters.

    what: name of the argument. Raises WrongTypeError or InvalidArgumentError.
    """
    check_text(what, name)
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"a name is text that UTF-8 can hold, not {name[:80]!r}: {error}") from None
    if not 1 <= size <= NAME_BYTES_MAX:
        raise InvalidArgumentError(f"a name has 1 to {NAME_BYTES_MAX} bytes of UTF-8, {name[:80]!r} has {size}")
    if any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in name):
        raise InvalidArgumentError(f"a name has no control characters; {name!r} has some")
    if len(quote_name(name)) > _KEY_MAX:
        raise InvalidArgumentError(
            f"a name has at most {_KEY_MAX} characters as a key of the metadata store, {quote_name(name)[:80]!r}... "
            f"has {len(quote_name(name))}"
        )
    return name


def quote_name(name: str) -> str:
    """Quote a name for use in a key."""
    return quote(name, safe="") if name not in (".", "..") else name.replace(".", "%2E")


def unquote_name(quoted: str) -> str:
    """Return the name that `quote_name` quoted."""
    return unquote(quoted)


def topic_key(name: str) -> str:
    """Return the key of a topic in the metadata store. Raises the errors of `check_name`."""
    return f"{TOPICS}/{quote_name(check_name(name))}"
