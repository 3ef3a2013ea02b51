"""Compares, around the first steps, everything that the cell can reach: what changed is carried, or refused by name.

Between two steps the cell may change what it likes. What `loop_variables` carries is left alone here, and so is what
only shows or records (`readings.SHOWS`), what comes from a clock, and what flows nowhere (`reads`). Anything else is
copied from now on by its path (`carried_paths`), or refused with its line before the second step. What a loss function
changes is a matter of `reproducible`.
"""

from __future__ import annotations

import queue
import re
import time
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from ...core.errors import TrainingError
from ...core.units import few
from . import readings
from .analysis import chance
from .analysis.reads import Flow
from .analysis.source import NO_LINE, Program
from .carried import Carried
from .carried_paths import resolved, short
from .frames import callers
from .functions import names_of
from .heap import Heap, hooks_of
from .late import LateChanges, is_covered
from .own_files import is_own_class
from .walk import Noted, Path, Walk, is_kept_by_function

TURNS = 3  # turns of the loop that are watched
SMALL = 1000  # numbers in what is carried before it has changed
LONGEST_S = 0.05  # of a core, for a walk; after a longer one, only the next boundary is looked at
CUT = (
    "the cell reaches more objects than are compared in its first steps, so a change that a member which joins later "
    "does not get may go unnoticed; register what the loop changes, session.register(...)"
)
REFUSED = (
    "{place}: {name} changes from step to step, and a member that joins later cannot be given it, because {why}. "
    "Compute it from step.number, keep its values in session.state, or register an object with state_dict() and "
    "load_state_dict(), session.register({ident}=...)"
)
INSIDE = (
    "{place}: the loss function changes {name}{read}, so the run depends on which micro-batches a member computes. A "
    "loss function may depend only on its batch, the model and the seeded generators of torch, random and numpy: "
    "change {ident} in the loop, after step.run(), or return what it needs"
)
EVALUATES = (
    "{place}: the function given to session.evaluate() changes {name}, and each member calls it for its share of the "
    "data alone. Return what is needed as a value or a (sum, weight) pair. A module that it calls has to be in "
    "evaluation mode, module.eval(), before"
)
CACHED = (
    "{place}: {name}() keeps results (functools.lru_cache) that depend on {names}, which changes, so a member that "
    "joins later would compute others. Pass {names} as an argument, or leave the cache out"
)
KEEPS = (
    "{place}: {name} keeps results that depend on random numbers or on the model's weights at that moment. A member "
    "that joins later would compute others: compute them anew each time, or before the loop for the whole data set"
)
LEFT = (
    "each member has another value of {names}: what its own share of the micro-batches has left there. So what the "
    "loop reads or prints of it depends on the number of nodes. Return it beside the loss, return loss, "
    '{{"name": value}}, and read step.metrics["name"], which is that of the whole step'
)
SETTING = (
    "{place}: {name} changes a setting of the process in the loop, which a member that joins later does not have: call "
    "it before the loop"
)
REGISTERED = (
    "{place}: {name} is called in the loop, and a member that joins later does not have what was registered there: "
    "call it before the loop"
)
KEPT = "it keeps results (functools.lru_cache), and one of them has changed"
POSITION = "it is a {kind}, whose position cannot be copied"
HIDDEN = "it is a {kind}, whose content cannot be seen"
FOREIGN = "it holds {why}, which cannot be copied"
ATTRIBUTES = {("global", "attr"), ("frame", "attr")}  # how a path to an attribute of a variable begins
Settings = Sequence[Mapping[str, Any]]


class Comparison:
    """The comparison of one session. ``members_join``: whether there may be members that join later."""

    def __init__(
        self,
        heap: Heap,
        sources: Mapping[str, Any],
        carried: Carried,
        members_join: bool,
        warn: Callable[[str], None],
    ) -> None:
        self._heap = heap
        self._sources = sources
        self._carried = carried
        self.members_join = members_join
        self._left = TURNS if members_join else 0
        self._active = members_join
        self.warn = warn
        self._before: Walk | None = None
        self._applying: Walk | None = None  # before the optimizer's step
        self._stepped: set[Path] = set()  # what has changed in such a step
        self._after: Walk | None = None
        self._slow = False
        self.late = LateChanges(heap, carried)

    def between(self, newcomers: bool = False) -> None:
        """The cell is between two steps; ``newcomers``: some may join soon.

        Raises TrainingError for what can neither be carried nor be left alone.
        """
        if self.members_join and (not self._active or self._carried.first_step):
            self.late.carry(newcomers)
        if not self._active or self._carried.first_step:
            return
        now = self.look(between=True)
        self.late.begin(now)
        if self._after is not None:
            if self._left == TURNS:
                self._carry_early(now)
            self._judge(self._after, now)
            self._left -= 1
        self._before, self._after = now, None
        self._active = self._left > 0
        now.places.clear()

    def begins(self) -> None:
        """The cell begins a step: it may have changed something since it was between two. Raises TrainingError."""
        if self._active and self._before is not None and not self._slow:
            now = self.look()
            self._judge(self._before, now)
            self._before = now
            now.places.clear()

    def applies(self) -> None:
        """The optimizer is about to step: what the program's own code changes there, the loop changes."""
        if self._active and self._before is not None and not self._slow and self._has_own_step():
            self._applying = self.look()

    def applied(self) -> None:
        """The optimizer has stepped. Raises TrainingError for what can neither be carried nor be left alone."""
        before, self._applying = self._applying, None
        if before is not None:
            now = self.look()
            changed = {path: noted for path, noted in before.changed(now).items() if not self._is_settings(path)}
            self._stepped.update(changed)
            self._judge_each(changed, before, now)

    def _has_own_step(self) -> bool:
        optimizers = [one for name, one in self._sources.items() if name.startswith("optimizer")]
        return any(is_own_class(type(one)) or (hasattr(one, "__dict__") and hooks_of(one)) for one in optimizers)

    def ends(self) -> None:
        """The step is done. What it has changed of the optimizer and the scheduler belongs to the run, too."""
        if not self._active or self._before is None:
            return
        now = self.look()
        inside = {path: noted for path, noted in self._before.changed(now).items() if path not in self._stepped}
        for path, noted in inside.items():
            self.late.fills(path, self._before.found.get(path), noted, self._is_settings(path))
        self.late.stepped(self._before, inside)
        kept = {path: noted for path, noted in inside.items() if noted.kind == "cache" or self._is_settings(path)}
        self._judge_each(kept, self._before, now)
        self.look_at_containers(inside, now)
        self._before, self._after = None, now
        now.places.clear()

    def filled(self, before: Walk) -> bool:
        """A micro-batch was computed once more since a look: what that has changed, if anything, steps fill."""
        changed = before.changed(self.look())
        for path, noted in changed.items():
            self.late.fills(path, before.found.get(path), noted)
        return bool(changed)

    def left(self) -> dict[str, str]:
        """What the loss function has set in the step before, and code of the loop reads: names, and digests."""
        return self.late.left(self._before) if self._active and self._before is not None else {}

    def set_inside(self) -> set[tuple[str, str]]:
        """Variables and attributes of them in which the loss function has set something: `left` judges that."""
        paths = self.late.filled | self.late.lists
        return {(p[0][1][1], p[1][1]) for p in paths if len(p) == 2 and (p[0][0], p[1][0]) in ATTRIBUTES}

    def kept(self) -> dict[str, str]:
        """What the loss function fills from step to step, and the training depends on; after a look at everything."""
        found = self.late.left(self.late.look(), kept=True)
        return {name: shown for name, shown in found.items() if name in self.late.deciding}

    def once(self) -> dict[str, str]:
        """As `LateChanges.once`."""
        return self.late.once(self._before) if self._active and self._before is not None else {}

    def carry_once(self, paths: Collection[str]) -> None:
        """As `LateChanges.carry_once`."""
        if self._before is not None:
            self.late.carry_once(paths, self._before)

    def warn_of_left(self, names: list[str]) -> None:
        """Members differ in this."""
        self.warn(LEFT.format(names=few(names)))

    def look(self, between: bool = False) -> Walk:
        """Everything now, ``between`` two steps or in one."""
        began_s = time.thread_time()  # on a busy machine waiting for a core is not the walk's
        walk = self._heap.walk(between)
        self._slow = self._slow or time.thread_time() - began_s > LONGEST_S
        if walk.cut and self._before is None and self._left == TURNS:
            self.warn(CUT)
        return walk

    @property
    def own(self) -> frozenset[int]:
        """Ids of what the session carries."""
        return self._heap.own

    @property
    def data(self) -> Any:
        """The session's data."""
        return self._sources["data"]

    def refused(self) -> str:
        """What the source alone shows that no member could repeat, "" for nothing: it explains other gradients best."""
        return Program(Walk()).refused

    def matters(self, name: str) -> bool:
        """Whether what a variable holds flows into the training or into what is printed at the end."""
        reads = Program(Walk()).reads
        return reads.flow(reads.named(name)) is not Flow.NOWHERE

    def named(self, name: str) -> str:
        """A name of `reached` with the line that changes it, if one does."""
        program = Program(Walk())
        place = program.place(re.split(r"[.\[]", name)[-1])
        return name if " " in name or place == NO_LINE else f"{name} ({place})"

    def names(self, before: Walk, after: Walk, early: bool = True) -> list[str]:
        """What has changed between two walks, or, ``early``, since the step began; in words, with its lines."""
        program = Program(after)
        changed = ((early and self._before) or before).changed(after)
        changed = {p: noted for p, noted in changed.items() if noted.kind != "late"}
        matter = {p: noted for p, noted in changed.items() if program.flow(p, noted) is not Flow.NOWHERE}
        found = [
            f"{_label(after.as_named(path), noted)} ({program.place(noted.name)})" for path, noted in matter.items()
        ]
        return list(dict.fromkeys(found or program.unseeded()))

    def counted(self, before: Walk, after: Walk, *, late: bool = False) -> list[str]:
        """Sentences about what executing a micro-batch once more has changed, and the program, ``late`` the training,
        reads."""
        if not (self._active or late):
            return []
        program = Program(after)
        names = self._carried.variables.changed
        refused = program.refused or program.keyed(names) or program.counting() or program.unordered()
        refused = refused or program.reordered(names | program.changes, vars(self._carried.values))
        found, least = [refused] if refused and not late else [], Flow.TRAINING if late else Flow.PRINTED
        for path, noted in before.changed(after).items():
            if noted.kind not in ("cache", "setting", "late") and program.flow(path, noted) >= least:
                place, reader = program.place(noted.name), program.reader(path, noted)
                read = f", which {reader} reads" if reader not in ("", place) else ""
                label = _label(after.as_named(path), noted)
                found.append(INSIDE.format(place=place, name=label, ident=noted.name, read=read))
        return found

    def settings_inside(self, before: Settings, after: Settings) -> list[str]:
        """Sentences about settings of the optimizer, by parameter group, that a micro-batch has set otherwise."""
        groups = zip(before, after, strict=False)
        names = dict.fromkeys(name for one, other in groups for name in one if one[name] != other.get(name))
        shown = {name: Program(Walk()).place(name, "param_groups") for name in names}
        return [INSIDE.format(place=at, name=f"the optimizer's {n}", ident="it", read="") for n, at in shown.items()]

    def changed_by_evaluation(self, before: Walk, after: Walk, code: Any, decides: bool = False) -> str:
        """A sentence about what evaluating a batch once more has changed, and the program, or ``decides`` the training,
        reads; or ""."""
        changed = {p: noted for p, noted in before.changed(after).items() if noted.kind not in ("cache", "late")}
        if not changed:
            return ""
        program = Program(after)
        for path, noted in changed.items():
            if program.flow(path, noted) >= (Flow.TRAINING if decides else Flow.PRINTED):
                place = program.place(noted.name)
                if isinstance(code, types.CodeType):
                    place = program.at(code.co_filename, code.co_firstlineno)
                return EVALUATES.format(place=place, name=_label(after.as_named(path), noted))
        return ""

    def _is_settings(self, path: Path) -> bool:
        """Whether a path begins with the session's optimizer or scheduler."""
        try:
            root = resolved(path[:1], self._sources)
        except LookupError:
            return False
        return any(root is self._sources.get(name) for name in ("optimizer", "scheduler")) and root is not None

    def _judge(self, before: Walk, now: Walk) -> None:
        self._judge_each(before.changed(now), before, now)

    def _carry_early(self, now: Walk) -> None:
        """Carry small parts of objects that the loop may change later, by the source, though it has not changed yet."""
        program = Program(now)
        covered = set(self._carried.traced().notes)
        for path, noted in now.found.items():
            (kind, place), early = path[0], False
            if kind in ("global", "frame") and noted.kind in ("value", "shape"):
                early = self._may_change(path, noted, now) or (len(path) == 1 and program.sets(*place))
                early = early or (noted.key == "training" and program.toggles)
                early = early or (noted.name in program.changes and is_kept_by_function(path))
            if early and not is_covered(noted, covered) and program.flow(path, noted) is not Flow.NOWHERE:
                self.late.carry_path(path, now, SMALL)

    def _may_change(self, path: Path, noted: Noted, now: Walk) -> bool:
        """Whether a path leads into an object of a library that the loop may change, by any of its names."""
        if not noted.at:
            return False
        try:
            holder = resolved(path[: noted.at], self._sources)
        except LookupError:
            return False
        if isinstance(holder, queue.Queue):
            return True
        others = now.aliases.get(id(holder), set())
        return not self._carried.variables.changed.isdisjoint({path[0][1][1], *others})

    def _judge_each(self, changed: Mapping[Path, Noted], before: Walk, now: Walk) -> None:
        opaque = {path: noted for path, noted in now.found.items() if noted.kind == "opaque"}
        if not changed and not opaque:
            return
        tracer = self._carried.traced()
        covered = set(tracer.notes)
        program: Program | None = None
        for path, noted in changed.items():
            if noted.kind == "late" or is_covered(noted, covered):
                continue
            program = program or Program(now)
            if program.flow(path, noted) is not Flow.NOWHERE:
                self._carry(path, noted, program, before.found.get(path), now)
        for path, noted in opaque.items():
            if noted.name in self._carried.variables.changed and noted.whole not in covered:
                program = program or Program(now)
                if program.flow(path, noted) is not Flow.NOWHERE:
                    self._refuse(path, noted, program, HIDDEN.format(kind=noted.content))

    def _carry(self, path: Path, noted: Noted, program: Program, before: Noted | None, now: Walk) -> None:
        if noted.kind == "cache":
            self._look_at_cache(path, noted, program, before)
        elif noted.kind == "iterator":
            kind = type(resolved(path, self._sources)).__name__
            self._refuse(path, noted, program, POSITION.format(kind=kind))
        elif noted.kind == "setting":
            sentence, name = (SETTING, f"{noted.name}()") if path[0][0] == "setting" else (REGISTERED, short(path))
            raise TrainingError(sentence.format(place=program.place(noted.name), name=name))
        elif noted.at and (hidden := readings.hidden(resolved(path[: noted.at], self._sources))):
            self._refuse(path, noted, program, HIDDEN.format(kind=hidden))
        elif why := self.late.carry_path(path, now):
            self._refuse(path, noted, program, FOREIGN.format(why=why))

    def look_at_containers(self, changed: Mapping[Path, Noted], now: Walk) -> None:
        """What a loss function or the data set keeps under a key may depend on that key alone."""
        names = {noted.name for noted in changed.values() if noted.kind in ("shape", "value") and noted.whole}
        program = Program(now) if names else None
        for name in sorted(names) if program is not None else ():
            if program is not None and (place := program.keeps(name, self._is_trained)):
                raise TrainingError(KEEPS.format(place=place, name=name))

    def decides(self, changed: Mapping[Path, Noted], now: Walk) -> bool:
        """Whether the training reads some of it."""
        program = Program(now)
        return any(program.flow(path, noted) is Flow.TRAINING for path, noted in changed.items())

    def _is_trained(self, name: str) -> bool:
        """Whether a variable or an attribute holds a module that is trained."""
        values = [names[name] for f in callers() for names in (f.f_locals, f.f_globals) if name in names]
        values += [m for m in [getattr(self._sources["model"], name, None)] if m is not None]
        return any(isinstance(v, torch.nn.Module) and any(p.requires_grad for p in v.parameters()) for v in values)

    def _look_at_cache(self, path: Path, noted: Noted, program: Program, before: Noted | None) -> None:
        """A cache may keep what depends on its arguments alone."""
        if before is not None and before.misses == noted.misses:
            self._refuse(path, noted, program, KEPT)
        function = resolved(path, self._sources).__wrapped__
        code = function.__code__
        if chance.draws(names_of(code)):
            place = program.at(code.co_filename, code.co_firstlineno)
            raise TrainingError(KEEPS.format(place=place, name=f"{short(path)}()"))
        if names := readings.changing(function, self._carried.variables.changed):
            raise TrainingError(CACHED.format(place=program.place(noted.name), name=short(path), names=names[0]))

    def _refuse(self, path: Path, noted: Noted, program: Program, why: str) -> None:
        place = program.place(noted.name)
        raise TrainingError(REFUSED.format(place=place, name=_label(path, noted), why=why, ident=noted.name))


def _label(path: Path, noted: Noted) -> str:
    name = short(path)
    return name if noted.name in name else f"{name} ({noted.name})"
