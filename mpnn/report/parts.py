"""What a page is made of: sections of texts, tables, pictures and files."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mpnn.report.svg import inline_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Text:
    """A paragraph.

    >>> Text("a < b").as_html(1)
    '<p>a &lt; b</p>'
    """

    text: str

    def as_html(self, number: int) -> str:
        return f"<p>{html.escape(self.text, quote=False)}</p>"


@dataclass(frozen=True)
class Sheet:
    """A table: ``columns`` are its head, the first cell of each row names the row; numbers stand to the right.

    >>> Sheet("points", ("model", "points"), [("a", "1")]).as_html(1).count("scope=")
    3
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def as_html(self, number: int) -> str:
        cells = [[str(cell) for cell in row] for row in self.rows]
        right = [all(_is_number(row[place]) for row in cells) and bool(cells) for place in range(len(self.columns))]
        lines = [
            f"<tr>{''.join(_cell('th', name, right[place], 'col') for place, name in enumerate(self.columns))}</tr>"
        ]
        body = []
        for row in cells:
            parts = [
                _cell("td" if place else "th", text, right[place], "" if place else "row")
                for place, text in enumerate(row)
            ]
            body.append(f"<tr>{''.join(parts)}</tr>")
        says = f"<caption><span>{html.escape(self.caption, quote=False)}</span></caption>"
        inner = f"{says}<thead>{lines[0]}</thead><tbody>{''.join(body)}</tbody>"
        return _scrolling(self.caption, f"<table>{inner}</table>")


@dataclass(frozen=True)
class Picture:
    """A matplotlib figure; ``alt`` says in words what is seen in it, ``caption`` stands below it."""

    figure: Figure
    alt: str
    caption: str = ""

    def as_html(self, number: int) -> str:
        below = f"<figcaption>{html.escape(self.caption, quote=False)}</figcaption>" if self.caption else ""
        return f"<figure>{_scrolling(self.alt, inline_svg(self.figure, self.alt, number))}{below}</figure>"


@dataclass(frozen=True)
class Code:
    """A file or a command, as it is.

    >>> Code("seeds: 2").as_html(1)
    '<pre tabindex="0"><code>seeds: 2</code></pre>'
    """

    text: str

    def as_html(self, number: int) -> str:
        return f'<pre tabindex="0"><code>{html.escape(self.text, quote=False)}</code></pre>'


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    parts: Sequence[Text | Sheet | Picture | Code]


def _cell(tag: str, text: str, right: bool, scope: str) -> str:
    names = (f' scope="{scope}"' if scope else "") + (' class="number"' if right else "")
    return f"<{tag}{names}>{html.escape(text, quote=False)}</{tag}>"


def _scrolling(name: str, inner: str) -> str:
    """A frame that scrolls where the screen is narrow, also by the keyboard."""
    return f'<div class="wide" role="group" tabindex="0" aria-label="{html.escape(name)}">{inner}</div>'


def _is_number(text: str) -> bool:
    """Whether a cell is a number, perhaps with a unit, a spread or an interval: those stand to the right.

    >>> [_is_number(text) for text in ("1,234", "90.1 ± 0.4 %", "12 M", "−", "sdpa", "2 conv")]
    [True, True, True, True, False, False]
    """
    words = text.replace("[", " ").replace("]", " ").split()
    return all(not word.strip("±%−–-+.,0123456789") or word in ("k", "M", "G", "ms", "s") for word in words)
