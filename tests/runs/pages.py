"""Reads a page as a browser does, and insists that it is whole, harmless and needs nothing else."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img"}
DRAWN = {"svg", "g", "path", "line", "rect", "circle", "text", "tspan", "title", "defs", "pattern"}
TAGS = VOID | DRAWN | {
    *("html", "head", "title", "style", "body", "main", "header", "footer", "section", "h1", "h2", "h3", "p", "span"),
    *("div", "dl", "dt", "dd", "ul", "li", "table", "caption", "thead", "tbody", "tr", "th", "td", "figure"),
    *("figcaption", "details", "summary", "pre", "code", "strong", "small", "a"),
}  # fmt: skip
FETCHES = {"src", "href", "xlink:href", "action", "data", "poster", "srcset", "style", "background"}


class Page(HTMLParser):
    """``text``: all that is shown; ``pictures``: the alternative texts of the pictures."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.problems: list[str] = []
        self.words: list[str] = []
        self.pictures: list[str] = []
        self.feed(source)
        self.close()
        self.problems += [f"<{tag}> is not closed" for tag in self.open]
        self.text = "\n".join(self.words)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag not in TAGS:
            self.problems.append(f"<{tag}> is not a tag of this page")
        inside = tag == "a" and (known.get("href") or "").startswith("#")
        fetches = FETCHES - {"href"} if inside else FETCHES
        self.problems += [f"<{tag} {name}>" for name in known if name.startswith("on") or name in fetches]
        if known.get("role") == "img":
            self.pictures.append(known.get("aria-label") or "")
        elif tag == "svg" and known.get("aria-hidden") != "true":
            self.problems.append("a picture without a description")
        if tag == "meta" and known.get("http-equiv", "Content-Security-Policy") != "Content-Security-Policy":
            self.problems.append(f"<meta http-equiv={known['http-equiv']}>")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> does not close what is open")

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)


def harmless(source: str) -> Page:
    """The page, which loads nothing, runs nothing, closes what it opens and describes its pictures."""
    page = Page(source)
    assert page.problems == []
    assert all(page.pictures), "a picture has an empty description"
    assert "url(" not in source.replace("url(#hatch)", "") and "@import" not in source
    assert len(source.encode()) < 2_000_000
    return page
