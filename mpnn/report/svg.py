"""A figure as SVG inside a page: sharp at any size, in the page's own ink, light or dark."""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING

from mpnn.report.style import INK, PALE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def inline_svg(drawn: Figure, alt: str, number: int) -> str:
    """The figure as an ``<svg>`` element without background, prolog or metadata, that a screen reader names by ``alt``.

    Text is drawn as paths, so it looks the same where the font is missing. The colours of the house style for ink and
    lines become the page's.

    Args:
        number: of the figure in its page; identifiers are made of it, which must differ between figures.

    >>> from mpnn.report.style import figure
    >>> inline_svg(figure(2, 1), "nothing", 1)[:38]
    '<svg role="img" aria-label="nothing" v'
    """
    import matplotlib

    buffer = io.StringIO()
    # The salt makes the identifiers, and so the file, the same each time; no date for the same reason.
    with matplotlib.rc_context({"svg.hashsalt": "mpnn", "svg.fonttype": "path"}):
        drawn.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>f{number}-", text)
    for colour, name in ((INK, "currentColor"), ("#000000", "currentColor"), (PALE, "var(--line)")):
        text = text.replace(colour.lower(), name)
    head, _, body = text.partition(">")
    box = re.search(r'viewBox="[^"]*"', head)
    size = re.search(r'width="([\d.]+)pt"', head)
    assert box and size  # matplotlib writes both
    # Never so small on a phone that its letters cannot be read: the frame around it scrolls.
    wide = round(float(size[1]) * 96 / 72)
    style = f"width:{wide}px;max-width:100%;min-width:{min(wide, max(560, wide * 3 // 4))}px"
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    label = html.escape(alt)
    return re.sub(
        r"\n\s*", "\n", f'<svg role="img" aria-label="{label}" {box[0]} style="{style}" {names}>{body}'
    ).strip()
