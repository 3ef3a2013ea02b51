"""What the program has changed since its first step, wherever it was changed: carried, and shown to newcomers.

Neither the first steps nor the source show all that changes late. So members look now and then at everything that the
cell can reach, compare it with what there was before the first step, and carry what is different; and a member that
joins compares what it has with what another member shows.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from ...core.errors import TrainingError
from ...core.units import few
from ..process_settings import SETTINGS
from . import readings
from .analysis.emptied_files import refuse_emptied
from .analysis.reads import Flow
from .analysis.source import Program
from .carried import Carried
from .carried_paths import text
from .copies.copier import Copier
from .heap import Heap
from .origins import Origins
from .reached import digest
from .value_kinds import has_attributes
from .walk import REGISTERED, Noted, Path, Visit, Walk, is_set, leads_to, path_of

LACKS = (
    "this process goes on after step {step}, which another one has computed, and does not have what the program had "
    "changed there: {names}. {advice}"
)
KEEP = (
    "The source does not show that the run changes this. Keep such values in the session, session.state.name = ..., or "
    "change the one object in place instead of taking another one"
)
SET = (
    "A setting of the process cannot be given to another one: set it before the loop, or in a block around step.run() "
    "that takes it back, such as `with torch.autocast(...):`"
)
REGISTER = "What is registered late cannot be given to another process: call register() before the loop"
OF_PROCESS = ("chdir", "set_num_threads", "set_grad_enabled")  # settings that members may have otherwise
NOTHING = readings.plain(None)
NEW = ("new", "")  # the end of a path into an object that the loop has made
SHARE, SHARE_AT_END, SHARE_JOINING = 200, 20, 3  # a later look waits so many times as long as the last one took


class LateChanges:
    """The changes of one session since its first step."""

    def __init__(self, heap: Heap, carried: Carried) -> None:
        self._heap = heap
        self._carried = carried
        self._origins: Origins = carried.origins
        self._copier = Copier(heap.own, kinds=True)
        self.inside: set[Path] = set()  # what the loss function has changed
        self.filled: set[Path] = set()  # those values of it that may be others in each step
        self.lists: set[Path] = set()  # those lists and dictionaries of it
        self.deciding: set[str] = set()  # those of `left` on which the loop lets the training depend
        self._once: set[Path] | None = None  # what the loss function has set in the first step, and not again
        self._looked_s = self._look_s = 0.0  # when it was looked last, and how long that took
        self._has_begun = False

    def begin(self, walk: Walk) -> None:
        """The first step comes: what this walk has found, each member has. Only the first call matters.

        Raises TrainingError for a file that each member empties.
        """
        if not self._has_begun:
            refuse_emptied(walk)
            self._has_begun = True
            self._origins.note(walk)

    def read_source(self) -> None:
        """Read the program's source now, while nobody waits for this member: it is kept for what follows."""
        if self._has_begun:
            Program(self._origins.begin)

    def fills(self, path: Path, before: Noted | None, after: Noted, settings: bool = False) -> None:
        """A step has changed what is at this path: it fills that, or what holds it, such as a cache.

        ``settings``: it is the optimizer's or the scheduler's.
        """
        self.inside.add(_holder(path))
        is_kept = before is None or before.content == NOTHING
        if after.kind == "value" and not settings and not (after.at and is_kept):  # what a library finds once, it keeps
            self.filled.add(path)
        elif after.kind == "shape" and not settings and not after.at:
            self.lists.add(path)

    def stepped(self, before: Walk, changed: Mapping[Path, Noted]) -> None:
        """A step has ended, in which the loss function has changed this."""
        if self._once is None:
            found = ((path, noted, before.found.get(path)) for path, noted in changed.items())
            self._once = {path for path, noted, first in found if is_set(path, noted, first)}
        else:
            self._once = {path for path in self._once if not any(leads_to(path, other) for other in changed)}

    def once(self, now: Walk) -> dict[str, str]:
        """What the loss function has set in the first step and not again, such as ``if start is None: start = …``, and
        the training depends on: its paths, and digests.
        """
        here = (self._once or set()) & now.found.keys()
        program = Program(now) if here else None
        found = [p for p in here if program is not None and program.flow(p, now.found[p]) is Flow.TRAINING]
        within = {p: sorted((repr(q), _digest(n)) for q, n in now.found.items() if leads_to(p, q)) for p in found}
        return {repr(path): readings.digest(tuple(parts), "value") for path, parts in within.items()}

    def carry_once(self, paths: Collection[str], now: Walk) -> None:
        """Carry those of `once` that all members have alike; of the others, newcomers are compared."""
        for path in map(path_of, paths):
            if path in now.found:
                self.carry_path(path, now)

    def may_miss(self, is_set: bool) -> list[str]:
        """Names of what a newcomer of an interrupted step may have otherwise, though no comparison shows that.

        Its copy was first made in this step; or ``is_set``: the loss function sets it in each step.
        """
        found = [path for key in self._carried.since if (path := path_of(key))]
        if is_set and self.filled | self.lists:
            now = self.look()
            program = Program(now)
            least = dict.fromkeys(self.lists, Flow.TRAINING) | dict.fromkeys(self.filled, Flow.PRINTED)
            there = least.keys() & now.found.keys()
            found += [path for path in there if program.flow(path, now.found[path]) >= least[path]]
        return sorted(map(text, found))

    def left(self, now: Walk, kept: bool = False) -> dict[str, str]:
        """What the loss function has set in the step before, and code of the loop reads: names, and digests.

        ``kept``: only what it fills from step to step, such as a cache.
        """
        here, program = (self.lists if kept else self.filled | self.lists) & now.found.keys(), Program(now)
        found = {}
        for path in sorted(here):
            place, flow = program.read_by_loop(path, now.found[path])
            name = f"{text(now.as_named(path))} ({place})"
            if place:
                found[name] = _digest(now.found[path])
            if flow is Flow.TRAINING:
                self.deciding.add(name)
        return found

    def is_due(self, share: int) -> bool:
        """Whether ``share`` times as long as the last look took have passed since then."""
        return self._has_begun and time.perf_counter() >= self._looked_s + share * self._look_s

    def carry(self, newcomers: bool = False, at_once: bool = False) -> None:
        """Carry what has changed since the first steps. It looks at most half a percent of the time, or ``at_once``;
        more often where ``newcomers`` may come soon.
        """
        began_s, share = time.perf_counter(), SHARE_JOINING if newcomers else SHARE
        if not self._has_begun or not (at_once or self.is_due(share)):
            return
        now = self._heap.walk(between=True)
        covered, binds = set(self._carried.traced(bound=False).notes), self._carried.variables.binds
        for canonical, path, noted in self._changed(now):
            is_variable = len(path) == 1 and binds(path[0])
            if (
                noted.kind not in ("function", "iterator", "late", "setting")
                and not is_variable
                and not is_covered(noted, covered)
            ):
                self._carried.paths.add(canonical)
        for place, visit in self._replaced(now):
            if not (len(place) == 1 and binds(place[0])):
                self._carried.paths.add_place(place, visit.value)
        self._looked_s = time.perf_counter()
        self._look_s = self._looked_s - began_s

    def carry_path(self, path: Path, now: Walk, most: int | None = None) -> str:
        """Carry what a walk has found at a path; in an object that the loop has made, the place that holds this.

        Return "" or why that is impossible. With ``most``, only where it holds at most so many numbers.
        """
        canonical = self._origins.canonical(path, now)
        if canonical is not None:
            before, noted = self._origins.begin.found.get(canonical), now.found[path]
            if most is None and canonical != path and before is not None and before.content == noted.content:
                return ""  # it is another object than before, and no other content
            return self._carried.paths.add(canonical, most)
        for size in range(1, len(path) + 1):
            visit = now.places.get(path[:size])
            if visit is not None and self._origins.is_new(visit.value):
                place = self._origins.place(path[:size], now)
                if place is None or most is not None:
                    return ""
                if len(place) == 1 and self._carried.variables.binds(place[0]):
                    return self._carried.paths.unfit(visit.value)  # it is carried as a variable
                return self._carried.paths.add_place(place, visit.value)
        return ""

    def look(self) -> Walk:
        """Everything that the cell can reach now."""
        return self._heap.walk()

    def shown(self, now: Walk) -> dict[str, Any]:
        """What the program has changed since this member began, and reads; and what steps fill. As JSON."""
        changed = {repr(key): _digest(noted) for key, _, noted in self._changed(now, new=True)}
        changed |= {repr(path): "gone" for path in self._gone(now)}
        places = {repr(place): self._named(visit.value) for place, visit in self._replaced(now)}
        filled = {"inside": self.inside, "set": self.filled, "lists": self.lists}
        return {"changed": changed, "places": places} | {name: list(map(repr, paths)) for name, paths in filled.items()}

    def lacking(self, now: Walk, shown: Mapping[str, Any]) -> list[str]:
        """What this newcomer has otherwise than another one, which has shown it by `shown`; in words."""
        self.inside |= _paths(shown, "inside")  # first: what steps fill there is not this member's alone
        self.filled |= _paths(shown, "set")
        self.lists |= _paths(shown, "lists")
        if undone := self._to_undo(now, shown["changed"]):
            for path, content in undone.items():
                with suppress(LookupError, AttributeError, TypeError):
                    self._carried.paths.put(path, content)
            now = self.look()
        own = self.shown(now)
        return self._differing(now, own, shown)

    def differing(self, now: Walk, shown: Mapping[str, Any]) -> list[str]:
        """As `lacking`, on a member that has trained: it keeps its values, and what it knows of what steps fill.

        What a newcomer would put back is for the newcomer to miss.
        """
        own, filled = self.shown(now), self.inside
        kept = {repr(path) for path in self._to_undo(now, shown["changed"])}
        own["changed"] = {key: seen for key, seen in own["changed"].items() if key not in kept}
        self.inside = filled | _paths(shown, "inside")
        try:
            return self._differing(now, own, shown)
        finally:
            self.inside = filled

    def _differing(self, now: Walk, own: Mapping[str, Any], shown: Mapping[str, Any]) -> list[str]:
        roots = {path[0] for path in (*now.found, *now.places)}
        gone = {key: seen for key, seen in own["changed"].items() if seen == "gone"}
        at = {repr(path): _digest(noted) for path, noted in now.found.items()} | gone
        keys = ((path, self._origins.canonical(path, now)) for path in now.found)
        here = {repr(canonical): at[repr(path)] for path, canonical in keys if canonical is not None} | gone
        covered = set(self._carried.traced(bound=False).notes)
        loaded = {repr(path) for path, noted in now.found.items() if is_covered(noted, covered)}
        found: dict[str, None] = {}
        for key, theirs in shown["changed"].items():
            path = path_of(key)
            is_new = path[-1:] == (NEW,)
            # load_state_dict() of a registered object may make new ones inside
            seen = at.get(repr(path[:-1])) if is_new else here.get(key, at.get(key) if key in loaded else None)
            if path and path[0] in roots and not self._is_inside(path):
                if seen != theirs and (seen is not None or not self._leads(path[:-1] if is_new else path, now)):
                    found[text(path)] = None
        for key in own["changed"].keys() - shown["changed"].keys():
            path = path_of(key)  # what is new is compared by its place
            if shown["changed"].get(repr((*path, NEW))) == own["changed"][key]:
                continue  # the others have another object with the same content there
            if path and path[-1] != NEW and not self._is_inside(path) and own["changed"][key] != self._first(path):
                found[text(path)] = None
        return list(found | dict.fromkeys(self._misplaced(now, shown.get("places", {}), own["places"], covered)))

    def _to_undo(self, now: Walk, theirs: Collection[str]) -> dict[Path, Any]:
        """Numbers and text of own objects that this member alone has changed, by path; what was there before.

        The cell of a newcomer has run code that follows earlier steps, with other values.
        """
        found: dict[Path, Any] = {}
        for canonical, _, noted in self._changed(now):
            before = self._origins.begin.found.get(canonical)
            content = None if before is None or before.kind != "value" or before.whole else before.content
            if repr(canonical) in theirs or not isinstance(content, tuple) or content[1] == "nan":
                continue
            with suppress(LookupError):
                if noted.kind == "value" and has_attributes(self._origins.at(canonical[:-1])):
                    found[canonical] = content[1]
        return found

    def refuse_lacking(self, shown: Mapping[str, Any], step: int) -> None:
        """Raise TrainingError where this member lacks what the checkpoint after ``step`` shows."""
        if names := self.lacking(self.look(), shown):
            raise TrainingError(LACKS.format(step=step, names=few(names), advice=advice(names)))

    def _misplaced(
        self, now: Walk, theirs: Mapping[str, Any], own: Mapping[str, Any], covered: set[Any]
    ) -> Iterator[str]:
        here = {repr(place): visit for path, visit in now.places.items() if (place := self._origins.place(path, now))}
        for key in {**theirs, **own}:
            path = path_of(key)
            if not path or key not in here or self._is_inside(path):
                continue
            visit = here[key]
            noted = Noted("", "value", visit.holder, visit.key, id(visit.value), visit.name)
            if key not in theirs and is_covered(noted, covered):
                continue
            named, (origin, content) = self._named(here[key].value), theirs.get(key) or self._named_before(path)
            same = named[0] == origin if origin or named[0] else True  # what is new is compared by its content
            if not same and (content is None or named[1] != content):
                yield text(path)

    def _first(self, path: Path) -> str | None:
        noted = self._origins.noted(path)
        return None if noted is None else _digest(noted)

    def _leads(self, path: Path, now: Walk) -> bool:
        """Whether there is something at a path, which a walk has seen under another name."""
        with suppress(LookupError):
            value, holder = self._carried.paths.resolved(path), self._carried.paths.resolved(path[:-1] or path)
            return now.first(value) not in (None, path) or now.first(holder) not in (None, path[:-1])
        return False

    def _named(self, value: Any) -> list[str | None]:
        """The path of an object that every member has, "" for a new one; and a digest of its content."""
        origin = self._origins.path_of(value)
        return ["" if origin is None else repr(origin), digest(value, self._copier)]

    def _named_before(self, path: Path) -> list[str | None]:
        """As `_named`, of what was at a path before the first step."""
        with suppress(LookupError):
            return self._named(self._origins.at(path))
        return [repr(path), None]

    def _is_inside(self, path: Path) -> bool:
        return not self.inside.isdisjoint(path[:size] for size in range(1, len(path) + 1))

    def _changed(self, now: Walk, new: bool = False) -> Iterator[tuple[Path, Path, Noted]]:
        """What has changed and is read: its path before the first step, its path now, and what is there.

        Without what the loss function changes, and what each turn of the loop binds anew; ``new``: with what is in
        new objects, by its path now.
        """
        program, first = Program(now), self._origins.begin.found
        held = {path[:size] for path in first for size in range(1, len(path))} | set(first)
        for path, noted in now.found.items():
            canonical = self._origins.canonical(path, now)
            if canonical is None and not new:
                continue
            key = (*path, NEW) if canonical is None else canonical
            before = self._origins.noted(key)
            if before is not None:
                differs = before.content != noted.content
            else:
                is_attribute = key[-1][0] == "attr" and (key[:-1] in held or self._origins.is_known(key[:-1]))
                differs = canonical is None or key[0][0] == "environ" or self._origins.is_known(key) or is_attribute
            if differs and self._matters(program, path, key, noted):
                yield key, path, noted

    def _gone(self, now: Walk) -> Iterator[Path]:
        first = self._origins.begin.found
        if gone := list(self._origins.gone(now)):
            program = Program(now)
            yield from (path for path in gone if self._matters(program, path, path, first[path]))

    def _replaced(self, now: Walk) -> Iterator[tuple[Path, Visit]]:
        program = Program(now)
        for place, visit in self._origins.replaced(now).items():
            noted = Noted("", "value", visit.holder, visit.key, id(visit.value), visit.name, visit.inside)
            if self._matters(program, visit.path, place, noted):
                yield place, visit

    def _matters(self, program: Program, path: Path, canonical: Path, noted: Noted) -> bool:
        """Whether a change is the program's and is read; by its names before the first step, which all members have."""
        content = noted.content
        is_iterator = (
            noted.kind == "iterator" and isinstance(content, tuple) and content[0] in ("generator", "iterator")
        )
        if noted.kind in ("late", "setting"):
            return path[-1][1] not in OF_PROCESS
        if not (is_iterator or noted.kind in ("value", "shape", "function")):
            return False
        if (first := self._origins.noted(canonical)) is not None:
            path, noted = canonical, first
        if ("attr", "grad") in path or (path[0][0] == "environ" and not program.mentions(str(path[0][1]))):
            return False  # each process has its own
        if self._carried.variables.binds_anew(path[0]) or self._is_inside(path) or self._is_inside(canonical):
            return False
        return program.flow(path, noted) is not Flow.NOWHERE


def advice(names: Collection[str]) -> str:
    """What to do about what a member lacks, by its names."""
    kinds = {SET if name in SETTINGS else REGISTER if name.endswith(REGISTERED[1]) else KEEP for name in names}
    return ". ".join(sorted(kinds, key=(KEEP, SET, REGISTER).index))


def is_covered(noted: Noted, covered: set[Any]) -> bool:
    """Whether what was noted is part of something that is carried, by its ids."""
    return noted.holder in covered or noted.whole in covered or (noted.holder, noted.key) in covered


def _paths(shown: Mapping[str, Any], part: str) -> set[Path]:
    """A part of what another member has shown, as far as its paths can be read."""
    return {path for key in shown.get(part, ()) if (path := path_of(key))}


def _holder(path: Path) -> Path:
    """The container, or the object that a step fills, such as a cache."""
    return path[:-1] if len(path) > 1 and path[-1][0] == "item" else path


def _digest(noted: Noted) -> str:
    return readings.digest(noted.content, noted.kind)
