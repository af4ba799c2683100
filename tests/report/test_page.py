from __future__ import annotations

import html.parser
import json
import re

import pytest

from helpers import browser
from mpnn.report import Code, Picture, Section, Sheet, Text, page
from mpnn.report.style import INK, PALE, figure, tidy

real_browser = pytest.mark.skipif(browser.BROWSER is None, reason=browser.MISSING)


class Parsed(html.parser.HTMLParser):
    """Elements with their attributes, texts, and the balance of the tags."""

    VOID = ("meta", "link", "br", "img")

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.open = [], [], []
        self.feed(text)
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.texts.append(data)

    def of(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def drawing(colour=INK):
    drawn = figure(4, 2)
    axes = drawn.subplots()
    axes.plot([0, 1], [0, 1], color=colour)
    axes.imshow([[0, 1], [1, 0]], extent=(0, 1, 0, 1))
    tidy(axes)
    axes.set_xlabel("x < y & z")
    return drawn


HOSTILE = '<script>alert("x")</script> & <b>'


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    wide = [("row", *map(str, range(40)))]
    sections = [
        Section("Result", [Text(HOSTILE), Sheet(HOSTILE, ("name", HOSTILE), [(HOSTILE, "1.0 %"), ("b", "20 ± 3 %")])]),
        Section("Result", [Picture(drawing(), HOSTILE, HOSTILE), Picture(drawing(PALE), "second")]),
        Section(
            "Übersicht", [Sheet("wide", ("row", *(f"column {n}" for n in range(40))), wide), Code("a: 1\n" + HOSTILE)]
        ),
    ]
    return page(tmp_path_factory.mktemp("page"), f"A run {HOSTILE}", sections, footer=f"a machine {HOSTILE}")


@pytest.fixture(scope="module")
def parsed(made):
    return Parsed(made.read_text(encoding="utf-8"))


def external(text):
    """References to anything outside of a page: addresses in attributes and styles, except names of namespaces."""
    found = re.findall(r"""(?:src|href|srcset|action|data|poster)\s*=\s*["']([^"'#][^"']*)""", text)
    found += re.findall(r"url\(\s*[\"']?([^)\"'#][^)]*)", text) + re.findall(r"@import[^;]*", text)
    return [address for address in found if not address.startswith("data:")]


def test_it_refers_to_nothing_outside(made, parsed):
    text = made.read_text(encoding="utf-8")
    assert external(text) == []
    assert not {tag for tag, _ in parsed.elements} & {"script", "iframe", "object", "embed", "video", "audio", "base"}
    assert [link["href"] for link in parsed.of("link")] == ["data:,"]
    others = [address for address in re.findall(r"https?://[^\"'<> ]+", text) if "www.w3.org/" not in address]
    assert others == []


@pytest.mark.parametrize(
    "text",
    ['<img src="https://a/b.png">', "<style>@import 'a.css';</style>", "<p style='background:url(a.png)'>",
     '<svg><use href="a.svg#b"/></svg>'],
)  # fmt: skip
def test_the_search_for_references_finds_them(text):
    assert external(text)


def test_what_people_write_is_text(made, parsed):
    assert any(HOSTILE in text for text in parsed.texts)
    assert parsed.of("svg")[0]["aria-label"] == HOSTILE
    assert "<b>" not in made.read_text(encoding="utf-8")


def test_headings_language_and_names(parsed):
    assert parsed.of("html") == [{"lang": "en"}] and len(parsed.of("h1")) == 1
    names = [heading["id"] for heading in parsed.of("h2")]
    assert names == ["result", "result-1", "bersicht"]
    assert [link["href"][1:] for link in parsed.of("a")] == names
    assert [section["aria-labelledby"] for section in parsed.of("section")] == names
    assert len(parsed.of("main")) == len(parsed.of("header")) == len(parsed.of("footer")) == 1


def test_tables_have_captions_and_heads(parsed):
    assert len(parsed.of("caption")) == len(parsed.of("table")) == 2
    scopes = [cell.get("scope") for cell in parsed.of("th")]
    assert scopes.count("col") == 2 + 41 and scopes.count("row") == 3
    assert [cell.get("class") for cell in parsed.of("td")][:2] == ["number", "number"]


def test_pictures_have_alternatives_and_identifiers_of_their_own(made, parsed):
    pictures = parsed.of("svg")
    assert [one["role"] for one in pictures] == ["img", "img"] and pictures[1]["aria-label"] == "second"
    names = re.findall(r'\bid="([^"]*)"', made.read_text(encoding="utf-8"))
    assert len(names) == len(set(names)) > 5
    used = re.findall(r'(?:href="#|url\(#)([^")]*)', made.read_text(encoding="utf-8"))
    assert set(used) <= set(names)


def test_pictures_take_the_ink_of_the_page(made):
    text = made.read_text(encoding="utf-8")
    svg = text[text.index("<svg") : text.rindex("</svg>")].lower()
    assert INK.lower() not in svg and PALE.lower() not in svg and "currentcolor" in svg and "var(--line)" in svg


def test_the_same_page_is_the_same_file(tmp_path):
    parts = lambda: [Section("a", [Picture(drawing(), "a line")])]  # noqa: E731
    first, second = (page(tmp_path / name, "t", parts()).read_bytes() for name in "ab")
    assert first == second


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (["text"], r"expected sections to be Section\(title, parts\), got str"),
        ([Section("a", ["text"])], "expected the parts of 'a' to be Text, Sheet, Picture or Code, got str"),
    ],
)
def test_errors_at_the_door(sections, message, tmp_path):
    with pytest.raises(TypeError, match=message):
        page(tmp_path, "t", sections)
    assert not list(tmp_path.iterdir())


@real_browser
def test_a_browser_shows_it_and_asks_for_nothing_else(made, tmp_path):
    assert browser.requests(made, tmp_path) == []
    shown = browser.dom(made, tmp_path)
    assert shown.count("<svg") == 2 and shown.count("<tr>") == 5 and "<h2" in shown


@real_browser
def test_the_page_forbids_itself_what_another_page_would_ask_for(made, tmp_path):
    address = "http://127.0.0.1:9/a.png"
    image = f'<img src="{address}"><script src="{address[:-3]}js"></script></body>'
    free, kept = tmp_path / "free.html", tmp_path / "kept.html"
    free.write_text(f"<!doctype html><title>x</title><body>{image}", encoding="utf-8")
    kept.write_text(made.read_text(encoding="utf-8").replace("</body>", image), encoding="utf-8")
    assert browser.requests(free, tmp_path) == [f"{address[:-3]}js", address]
    assert browser.requests(kept, tmp_path) == []


# The parent may run a script, the page inside may not; both are of one origin, so that it can be measured.
FRAME = """<!doctype html><title>x</title><iframe id="f" style="border:0;width:390px;height:844px"></iframe><script>
const frame = document.getElementById("f");
frame.onload = () => { const page = frame.contentDocument.documentElement;
  const ink = getComputedStyle(frame.contentDocument.body).color;
  document.title = [page.scrollWidth, page.clientWidth, ink].join(" "); };
frame.srcdoc = %s;
</script>"""


@real_browser
def test_on_a_phone_only_tables_and_pictures_scroll_sideways(made, tmp_path):
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME % json.dumps(made.read_text(encoding="utf-8")).replace("</", "<\\/"), encoding="utf-8")
    inks = []
    for scheme in (0, 1):
        shown = browser.dom(frame, tmp_path, f"--blink-settings=preferredColorScheme={scheme}")
        found = re.search(r"<title>(\d+) (\d+) (rgb\(.*?\))</title>", shown)
        assert found is not None, shown[:300]
        assert int(found[1]) <= int(found[2]) <= 390
        inks.append(found[3])
    assert inks == ["rgb(232, 230, 227)", "rgb(34, 34, 34)"]  # light ink on a dark page, and the other way round


@real_browser
@pytest.mark.parametrize("dark", [False, True])
def test_a_screenshot_is_of_the_page(made, tmp_path, dark):
    from PIL import Image

    browser.screenshot(made, tmp_path / "a.png", width=800, height=600, dark=dark)
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size == (800, 600)
        assert picture.getpixel((2, 300))[:3] == ((22, 24, 28) if dark else (255, 255, 255))
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 20
