"""Drawings of matplotlib as SVG elements within a page, with the colours of the page in light and dark mode."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from pyreplog.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

INK, FAINT = "#0000e1", "#0000e2"
SERIES = ("#0000f1", "#0000f2", "#0000f3", "#0000f4", "#0000f5", "#0000f6")
"""Placeholders for colours of the page's style sheet."""

_VARIABLES = {
    INK: "var(--ink)", FAINT: "var(--faint)", **{color: f"var(--s{place})" for place, color in enumerate(SERIES, 1)}
}  # fmt: skip
_COLOR = re.compile("|".join(_VARIABLES))
_REFERENCE = re.compile(r"(url\(#|^#)")
_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "pyreplog",
    "text.parse_math": False,
    "font.size": 10.0,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "date.converter": "concise",
}

ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", _LINK)


def drawn(name: str, label: str, size: tuple[float, float], draw: Callable[[Drawing], Mapping[str, str]]) -> str:
    """Return a drawing as an SVG element.

    Args:
        name: unique among the drawings of the page.
        label: description for people who do not see the drawing.
        size: width and height, inches.
        draw: draws, and returns tooltips by gid.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure as Drawing
    except ImportError as error:
        raise MissingExtraError(f"plots need matplotlib: pip install 'pyreplog[report]' ({error})") from error
    file = io.BytesIO()
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the browser draws the text, with its own fonts
        drawing = Drawing(figsize=size, layout="constrained")
        tooltips = draw(drawing)
        drawing.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return _inlined(file.getvalue(), name, label, tooltips)


def _inlined(svg: bytes, name: str, label: str, tooltips: Mapping[str, str]) -> str:
    """Return an SVG document as an element of a page: ids are unique in the page, and colours are variables."""
    root = ElementTree.fromstring(svg)
    for part in [*root.findall(f"{{{_SVG}}}metadata"), *root.findall(f"{{{_SVG}}}defs")[:1]]:
        root.remove(part)  # the first defs are a style sheet, which would apply to the whole page
    for element in root.iter():
        text = tooltips.get(element.get("id", ""))
        if text is not None:
            title = ElementTree.Element(f"{{{_SVG}}}title")
            title.text = text
            element.insert(0, title)
        for key, value in element.attrib.items():
            element.set(key, _attribute(key, value, name))
    for key in ("width", "height"):
        del root.attrib[key]
    root.set("role", "img")
    root.set("aria-label", label)
    return ElementTree.tostring(root, encoding="unicode")


def _attribute(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    return _COLOR.sub(lambda match: _VARIABLES[match[0]], _REFERENCE.sub(rf"\g<1>{name}-", value))
