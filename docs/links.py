"""Ask every address outside this project that its pages link to: ``python docs/links.py``, or `make links`.

Links within the pages are checked by `make docs`. This needs a network, so no other check runs it.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

TREE = Path(__file__).resolve().parents[1]
TIMEOUT_S = 10.0
AT_ONCE = 8
URL = re.compile(r"https?://[^\s<>()\"'`|\]]+")
CODE = re.compile(r"`[^`]*`")
FENCE = re.compile(r"^\s*(```|~~~)")
NOBODY_S = re.compile(r"(^|\.)(localhost|example|example\.(com|org|net)|invalid|test)$|^127\.|^\[?::1|^0\.0\.0\.0$")
KEEPS_PROGRAMS_OUT = (401, 403, 429, 503)
AGENT = "Mozilla/5.0 (compatible; a check of links)"


@dataclass(frozen=True, slots=True)
class Link:
    """An address, and where a page has it."""

    path: str
    line: int
    url: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of asking: ``verdict`` is "there", "broken", "unclear" or "unreachable"."""

    verdict: str
    said: str = ""


def pages(tree: Path) -> list[Path]:
    """The pages and notebooks of the project."""
    return sorted([*tree.glob("*.md"), *(tree / "docs").rglob("*.md"), *(tree / "notebooks").glob("*.ipynb")])


def links(path: Path, tree: Path) -> Iterator[Link]:
    """The addresses outside to which a page links; what stands in code is an example."""
    name, text = str(path.relative_to(tree)), path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        said = "\n".join("".join(cell["source"]) for cell in cells)
        at = {url: line for line, row in enumerate(text.splitlines(), 1) for url in _addresses(row)}
        yield from (Link(name, at.get(url, 1), url) for row in _prose(said) for url in _addresses(row[1]))
        return
    yield from (Link(name, line, url) for line, row in _prose(text) for url in _addresses(row))


def _prose(text: str) -> Iterator[tuple[int, str]]:
    fenced = False
    for line, row in enumerate(text.splitlines(), 1):
        if FENCE.match(row):
            fenced = not fenced
        elif not fenced:
            yield line, CODE.sub("", row)


def _addresses(row: str) -> Iterator[str]:
    for found in URL.findall(row):
        url = found.rstrip(".,;:!?*…\\")
        host = urlsplit(url).hostname
        if host and not NOBODY_S.search(host):
            yield url


def ask(url: str, timeout_s: float = TIMEOUT_S) -> Answer:
    """Whether something is there; redirects are followed."""
    request = urllib.request.Request(url, headers={"User-Agent": AGENT})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            moved = answer.url.partition("#")[0] != url.partition("#")[0]
            return Answer("there", f"leads to {answer.url}" if moved else "")
    except urllib.error.HTTPError as error:
        error.close()
        return Answer("unclear" if error.code in KEEPS_PROGRAMS_OUT else "broken", f"answers with {error.code}")
    except TimeoutError:
        return Answer("unreachable", f"no answer within {timeout_s:g} s")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        late = isinstance(reason, TimeoutError)
        return Answer("unreachable", f"no answer within {timeout_s:g} s" if late else str(reason))


def check(found: Iterable[Link], timeout_s: float = TIMEOUT_S) -> tuple[list[str], bool]:
    """What there is to say of links, a line each and a sentence at the end, and whether none is broken.

    Where not one address has answered, there is no network, and nothing is said of the links.
    """
    places: dict[str, list[Link]] = {}
    for link in found:
        places.setdefault(link.url, []).append(link)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = dict(zip(places, threads.map(lambda url: ask(url, timeout_s), places), strict=True))
    if answers and all(answer.verdict == "unreachable" for answer in answers.values()):
        return [f"not verified: no network (none of {len(answers)} addresses has answered)"], True
    words = {"broken": "broken", "unreachable": "broken", "unclear": "not verified", "there": "moved"}
    told = [
        f"{link.path}:{link.line}: {words[answer.verdict]}: {link.url} {answer.said}"
        for url, answer in answers.items()
        if answer.said
        for link in places[url]
    ]
    verdicts = [words[answer.verdict] for answer in answers.values()]
    broken, unclear = verdicts.count("broken"), verdicts.count("not verified")
    told.append(f"{len(answers)} addresses asked: {broken} broken, {unclear} not verified")
    return told, not broken


def main(tree: Path = TREE) -> int:
    told, whole = check(link for page in pages(tree) for link in links(page, tree))
    print("\n".join(told))
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
