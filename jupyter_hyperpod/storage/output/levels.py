"""The level of each line of output: error, warning, info, debug, or other where the line does not say.

Known are the lines of Python's `logging` in its usual formats, of loguru, structlog, absl and glog, of JSON and logfmt
with a level, of `warnings.warn`, and tracebacks. What is indented belongs to the line before it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from ...core.errors import SpecError
from ...core.events import Event
from ...core.options import near_matches
from .output_reader import is_notice

LEVELS = ("error", "warning", "info", "debug", "other")
OTHER = LEVELS[-1]
_NAMES = {
    "error": "error critical fatal err severe alert emergency panic exception",
    "warning": "warning warn",
    "info": "info notice success information",
    "debug": "debug trace verbose",
}
_LEVEL_OF = {name: level for level, names in _NAMES.items() for name in names.split()}
_LETTERS = {"F": "error", "E": "error", "C": "error", "W": "warning", "I": "info", "D": "debug"}
HEAD = 240  # characters of a line in which its level is
JSON_HEAD = 4096
_ANY = "|".join(sorted(_LEVEL_OF, key=len, reverse=True))
_UPPER = _ANY.upper()
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RANK = re.compile(r"\[rank ?\d+\]:? ?")  # torch puts it before each line of a traceback
_LINE = re.compile(
    rf"""
      [\[(<]?\ ?(?P<first>{_UPPER})(?=[]\s:|)>,]|\ ?-\ |$)                # INFO:root:  [INFO]  INFO     | text
    | \[\s*(?P<boxed>(?i:{_ANY}))\s*\]                                    # [info     ] text
    | (?P<tool>(?i:error|fatal|critical|warning|warn|info|debug)):\ \S     # warning: text
    | \[?(?P<letter>[DIWEFC])(?:\d{{4}}|\d{{8}})\ \d\d:\d\d:\d\d          # W1127 14:41:12.3 1234 file.py:12] text
    | [\[(<]?(?:\d{{2,4}}[-/.]\d{{1,2}}[-/.]\d{{1,4}}[T\ ,_]|\d{{1,2}}:\d\d:\d\d|[A-Z][a-z]{{2}}\ {{1,2}}\d)
      .{{0,120}}?(?:(?<=[][\s(<|:-])(?P<dated>{_UPPER})(?=[]\s:|)>,-]|$)  # 2026-11-27 14:41:12,345 - name - INFO - text
                  |\[\s*(?P<datedbox>(?i:{_ANY}))\s*\])
    | (?:\S{{1,80}}?(?::|\ -\ |\ \|\ |\ ?\[)|\([^()]{{1,60}}\)\ |\[[^][]{{1,60}}\]\ ?)
      \[?(?P<named>{_UPPER})(?=:|\]|\ -\ |\ *\|\ )                        # name - INFO - text  (Actor pid=3) INFO: text
    """,
    re.VERBOSE,
)
_ERROR = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)(?::\s|$)")
_WARNED = re.compile(r"(?:\S.*?:\d+: )?(?:[A-Za-z_]\w*\.)*\w*Warning: ")
_LOGFMT = re.compile(rf'(?:^|\s)(?:level|lvl|severity)="?({_ANY})"?(?=\s|$)', re.IGNORECASE)
_NCCL = re.compile(rf"NCCL ({_UPPER})\b")
_JSON = re.compile(
    r'"(?:level|severity|levelname|log\.level|log_level|loglevel|lvl)"\s*:\s*"(\w{1,12})"', re.IGNORECASE
)
_TRACEBACK = "Traceback (most recent call last)"
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
# what is in every text with a line of the level, in lower case, and letters of glog; a traceback may have two levels
_HINTS = {level: tuple(names.split()) for level, names in _NAMES.items()}
_HINTS["error"] += ("traceback", "exit", "interrupt")
_HINTS["warning"] += ("traceback",)
_GLOG = {level: "".join(letter for letter, one in _LETTERS.items() if one == level) for level in _NAMES}
_SEGMENT = re.compile(r"[^\r\n]*(?:\r?\n|\r)|[^\r\n]+\Z")


def parse(text: str) -> frozenset[str]:
    """The levels in ``"error,warning"``; some other names of them are known. Raises SpecError."""
    words = [word.strip().lower() for word in text.split(",")]
    for word in words:
        if word != OTHER and word not in _LEVEL_OF:
            near = near_matches(word, LEVELS)
            raise SpecError(f"{word[:40]!r} is no level{near}: write one or more of {', '.join(LEVELS)}, with commas")
    return frozenset(_LEVEL_OF.get(word, OTHER) for word in words)


def level_of(line: str) -> str | None:
    """The level that a line itself says, None where it says none."""
    return _level_of(_plain(line))


def _plain(line: str) -> str:
    """The line as far as its level can be in it, without colours and the rank before it."""
    head = line[: JSON_HEAD if line[:1] == "{" else HEAD]
    if "\x1b" in head:
        head = _ESCAPE.sub("", head)
    if head.startswith("[rank") and (rank := _RANK.match(head)):
        head = head[rank.end() :]
    return head


def _level_of(head: str) -> str | None:
    if head[:1] == "{":
        return next((level for name in _JSON.findall(head) if (level := _LEVEL_OF.get(name.lower()))), None)
    if head[:1] in (" ", "\t", ""):
        return None
    if found := _LINE.match(head):
        word = str(found[found.lastgroup or 0])
        return _LETTERS[word] if found.lastgroup == "letter" else _LEVEL_OF[word.lower()]
    if "=" in head and (found := _LOGFMT.search(head)):
        return _LEVEL_OF[found[1].lower()]
    if "NCCL" in head and (found := _NCCL.search(head)):
        return _LEVEL_OF[found[1].lower()]
    if "Warning: " in head and _WARNED.match(head):
        return "warning"
    return "error" if _ERROR.match(head) else None


class LevelReader:
    """Reads the lines of one stream in their order: what belongs to the line before has its level."""

    def __init__(self) -> None:
        self._level = OTHER
        self._traced = self._ended = False  # within a traceback, after its last line

    def read(self, line: str) -> str:
        """The level of the next line."""
        head = _plain(line)
        if _TRACEBACK in head:
            # After `logging.exception`, or after whatever was printed last before an exception that nobody caught.
            self._level = self._level if self._level in ("error", "warning") else "error"
            self._traced, self._ended = True, False
        elif self._traced and (not head.strip() or head[0] in " \t"):
            pass
        elif self._traced and (_ERROR.match(head) or _level_of(head) is None):
            self._traced, self._ended = False, True  # `ValueError: text`
        elif self._ended and (not head.strip() or head.startswith(_CHAIN)):
            pass
        elif (own := _level_of(head)) is not None:
            self._begin(own)
        elif self._level == OTHER or not head.strip() or head[0] not in " \t":
            self._begin(OTHER)
        return self._level

    def rewritten(self, line: str) -> str:
        """The level of what a carriage return follows or comes before: a progress bar may be indented."""
        self._begin(level_of(line) or OTHER)
        return self._level

    def _begin(self, level: str) -> None:
        self._level, self._traced, self._ended = level, False, False


def _last_record(text: str) -> int:
    """Where the last line begins that is not indented, and has an end; 0 where there is none."""
    at = text.rfind("\n")
    while at > 0:
        begin = max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1
        if text[begin] not in " \t\r\n":
            return begin
        at = begin - 1
    return 0


class _Stream:
    """What is known of one stream of a member: the begin of a line that has no end yet, and its level."""

    def __init__(self) -> None:
        self.reader = LevelReader()
        self.open, self.level, self.returned = False, OTHER, False


class PieceLevels:
    """Of pieces of output, in their order, what has one of these levels. A line may be in several pieces."""

    def __init__(self, levels: Collection[str]) -> None:
        self._levels = levels
        self._hints = sorted({hint for level in levels for hint in _HINTS.get(level, ())})
        letters = "".join(_GLOG.get(level, "") for level in levels)
        self._glog = re.compile(rf"[{letters}]\d\d\d\d") if letters else None
        self._streams: dict[tuple[str, str], _Stream] = {}

    def kept(self, event: Event) -> Event | None:
        """The piece with those of its lines that have the levels; None where none has. Notices stay."""
        if is_notice(event):
            return event
        data = event.data
        if "shown" in data:
            return event if OTHER in self._levels else None
        key = (str(data.get("member", "")), str(data["stream"]))
        stream = self._streams.setdefault(key, _Stream())
        whole = str(data["text"])
        if self._has_none(whole) and stream.level not in self._levels and (begin := _last_record(whole)):
            stream.open, stream.returned = False, whole[begin - 1] == "\r"
            whole = whole[begin:]  # only for what is known after it
        text = "".join(self._lines(stream, whole))
        return replace(event, data={**data, "text": text}) if text else None

    def of(self, events: Iterable[Event]) -> Iterator[Event]:
        """What is kept of these pieces."""
        return (kept for event in events if (kept := self.kept(event)) is not None)

    def _has_none(self, text: str) -> bool:
        """Whether certainly no line of the text says one of the levels: this is much faster than to read them."""
        if OTHER in self._levels or (self._glog is not None and self._glog.search(text)):
            return False
        lower = text.lower()
        return not any(hint in lower for hint in self._hints)

    def _lines(self, stream: _Stream, text: str) -> Iterator[str]:
        for line in _SEGMENT.findall(text):
            returns = line.endswith("\r")
            if not stream.open:
                bare = line.rstrip("\r\n")
                bar = returns or stream.returned
                stream.level = stream.reader.rewritten(bare) if bar else stream.reader.read(bare)
            stream.open, stream.returned = line[-1] not in "\r\n", returns
            if stream.level in self._levels:
                yield line
