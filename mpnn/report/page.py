"""One page for a run, in one file that asks for no other: tables, pictures, configuration, machine."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path

from mpnn.data.files import write_text
from mpnn.report.parts import Section

# The browser itself keeps the page from asking for anything: no script, no font, no image that is not in it.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #222222; --soft: #5a5a5a; --line: #dddddd; --shade: #f5f5f3;
        --link: #0059a8; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181c; --ink: #e8e6e3; --soft: #a9a7a3; --line: #40444c; --shade: #1f2228; --link: #7fb8f0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
header, main, footer { max-width: 64rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--line); }
p { max-width: 46rem; margin: .5rem 0; }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: 1rem 0; padding: 0; }
a { color: var(--link); }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
.wide { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: .92rem; margin: 1rem 0; font-variant-numeric: tabular-nums; }
caption { caption-side: bottom; text-align: left; color: var(--soft); padding-top: .5rem; }
caption span { display: block; position: sticky; left: 0; width: fit-content;
               max-width: min(46rem, calc(100vw - 2.5rem)); }
th, td { text-align: left; vertical-align: top; padding: .35rem 1rem .35rem 0; }
th { font-weight: 600; }
tbody th { font-weight: 500; white-space: nowrap; }
thead th { border-bottom: 2px solid var(--line); color: var(--soft); vertical-align: bottom; }
tbody tr { border-bottom: 1px solid var(--line); }
.number { text-align: right; white-space: nowrap; }
figure { margin: 1rem 0; }
figcaption { color: var(--soft); font-size: .92rem; max-width: 46rem; }
svg { display: block; height: auto; fill: currentColor; }
pre { background: var(--shade); border: 1px solid var(--line); border-radius: 4px; padding: .75rem 1rem;
      overflow-x: auto; font: .85rem/1.45 ui-monospace, monospace; }
footer { color: var(--soft); font-size: .85rem; padding: 2rem 1.25rem 3rem; }
@media (max-width: 40rem) { tbody th { white-space: normal; min-width: 6rem; } }
@media print { nav { display: none; } .wide { overflow: visible; } }
"""


def page(folder: str | Path, title: str, sections: Sequence[Section], *, footer: str = "") -> Path:
    """Write ``folder/index.html``: one file with everything inside, for a browser, a phone, a screen reader, paper.

    Pictures are SVG inside the page, in the page's colours, light or dark as the reader's system is. There is no
    script, and the page forbids itself every request.

    Args:
        folder: made if it is not there; an older page is replaced, atomically.
        sections: each a heading and :class:`Text`, :class:`Sheet`, :class:`Picture`, :class:`Code` below it.
        footer: a last line, as the machine.

    Returns: the path of the page.

    Raises:
        TypeError: a section or a part that is none.

    Example::

        >>> import tempfile
        >>> from mpnn.report import Section, Sheet, Text, page
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = Sheet("who won", ("model", "points"), [("CNN", "3"), ("MLP", "1")])
        ...     made = page(folder, "A game", [Section("Result", [Text("The CNN won."), table])])
        ...     made.name, "<h1>A game</h1>" in made.read_text()
        ('index.html', True)
    """
    for section in sections:
        if not isinstance(section, Section):
            raise TypeError(f"expected sections to be Section(title, parts), got {type(section).__name__}")
        for part in section.parts:
            if not hasattr(part, "as_html"):
                raise TypeError(
                    f"expected the parts of {section.title!r} to be Text, Sheet, Picture or Code, "
                    f"got {type(part).__name__}"
                )
    names = _names([section.title for section in sections])
    links = [f'<li><a href="#{name}">{html.escape(s.title)}</a></li>' for name, s in zip(names, sections, strict=True)]
    body, number = [], 0
    for name, section in zip(names, sections, strict=True):
        inner = []
        for part in section.parts:
            number += 1
            inner.append(part.as_html(number))
        head = f'<section aria-labelledby="{name}">\n<h2 id="{name}">{html.escape(section.title)}</h2>'
        body.append("\n".join([head, *inner, "</section>"]))
    lines = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<title>{html.escape(title)}</title>\n<link rel="icon" href="data:,">',
        f"<style>{STYLE}</style>\n</head>\n<body>",
        f"<header>\n<h1>{html.escape(title, quote=False)}</h1>",
        f'<nav aria-label="Contents"><ul>{"".join(links)}</ul></nav>\n</header>' if len(links) > 1 else "</header>",
        "<main>",
        *body,
        "</main>",
        f"<footer>{html.escape(footer, quote=False)}</footer>\n</body>\n</html>\n",
    ]
    path = Path(folder) / "index.html"
    write_text(path, "\n".join(lines))
    return path


def _names(titles: Sequence[str]) -> list[str]:
    """A name for the address of each heading: its words, numbered where two are the same."""
    found: list[str] = []
    for title in titles:
        name = "-".join(re.findall(r"[a-z0-9]+", title.lower())) or "section"
        found.append(name if name not in found else f"{name}-{len(found)}")
    return found
