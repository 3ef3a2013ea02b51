"""How the state of optimizers, and of other objects of known kinds, is read and set: whole, and with the same bits."""

from __future__ import annotations

import hashlib
import io
import random
import sys
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.hooks import RemovableHandle

from ...core.errors import TrainingError
from ...core.units import few
from ..comm.state_codec import is_array
from ..program.copies.pandas_state import is_table, new_table, set_table, table_state
from ..program.own_files import is_own_class
from .purity import fit_buffers
from .turns import AnyOptimizer, is_scheduler, load_scheduler, ones, state_of_scheduler

Access = tuple[Callable[[Any], Any], Callable[[Any, Any], object]]
_OF_TORCH = ("state", "param_groups", "defaults", "step")  # in state_dict(), fixed, or wrapped by schedulers
_HOOKS: WeakKeyDictionary[Any, RemovableHandle] = WeakKeyDictionary()  # of the newest session of each optimizer
SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)  # cannot travel
CHILDREN = "children"  # beside the state of a generator of numpy, how many generators were made of it
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CALLED = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type)
_NO_GENERATOR = {*_PLAIN, *_CALLED, list, tuple, dict, set, torch.Tensor}  # told at once: it is asked in each step


def load_exactly(optimizer: AnyOptimizer, saved: Mapping[str, Any]) -> None:
    """Load a state dict; tensors keep their data type.

    torch converts floating-point parameters' state to the type of the parameter: 32-bit moments of bfloat16 weights
    would lose bits, and quantised ones their meaning.
    """
    before = [(one, one.param_groups) for one in ones(optimizer)]
    optimizer.load_state_dict(dict(saved))
    for one, groups in before:
        for group, loaded in zip(groups, one.param_groups, strict=True):  # other names may refer to a group
            for name in group.keys() - loaded.keys():
                del group[name]
            group.update(loaded)
        one.param_groups = groups
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, held, strict=True):
        for name, value in saved.get("state", {}).get(number, {}).items():
            loaded = optimizer.state[parameter].get(name)
            if _has_other_type(loaded, value):
                optimizer.state[parameter][name] = value.detach().clone().to(loaded.device)


def has_state(value: Any) -> bool:
    """Whether `value` gives and takes its state as torch's modules, optimizers and schedulers do."""
    try:
        names = () if isinstance(value, (type, ModuleType)) else ("state_dict", "load_state_dict")
        return bool(names) and all(callable(getattr(value, name, None)) for name in names)
    except Exception:  # an object that answers only after its library has begun, such as wandb's
        return False


def _inherits_state(value: Any) -> bool:
    """Whether an object of an own class has the `state_dict` of a library's class, which knows no attribute of it."""
    kind = type(value)
    if not is_own_class(kind):
        return False
    giver = next((base for base in kind.__mro__ if "state_dict" in vars(base)), None)
    if giver is None:  # it forwards all names to another object, by __getattr__
        return True
    return not is_own_class(giver) and giver.__module__.partition(".")[0] != "torch"


def _gives_state(value: Any) -> bool:
    """Whether `state_dict` returns: that of a loader of accelerate fails unless accelerate was told to keep it."""
    return type(value).__module__ != "accelerate.data_loader" or getattr(value, "use_stateful_dataloader", False)


def is_generator(value: Any) -> bool:
    """Whether `value` is a generator of random numbers."""
    how = None if type(value) in _NO_GENERATOR or has_state(value) else access(value)
    return how is not None and how[0] is not table_state


def access(value: Any) -> Access | None:
    """How the state of an object of a known kind is read and set, or None.

    Kinds: objects with ``state_dict`` and ``load_state_dict``, random generators of torch, Python and numpy, files in
    memory, and data frames and series of pandas.
    """
    numpy: Any = sys.modules.get("numpy")
    if isinstance(value, torch.optim.Optimizer):
        return _optimizer_state, _set_optimizer
    if has_state(value) and not _inherits_state(value) and _gives_state(value):
        return state_of_scheduler if is_scheduler(value) else (lambda v: v.state_dict()), _load_state
    if isinstance(value, torch.Generator):
        return (lambda v: v.get_state()), (lambda v, copy: v.set_state(copy))
    if isinstance(value, (io.BytesIO, io.StringIO)) and not value.closed:
        return _memory_file, set_memory_file
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return (lambda v: v.getstate()), (lambda v, copy: v.setstate(copy))
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return (lambda v: v.get_state(legacy=False)), (lambda v, copy: v.set_state(copy))
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return _numpy_state, _set_numpy_state
    if numpy is not None and isinstance(value, numpy.random.SeedSequence):
        return _children, _set_children
    if is_table(value):
        return table_state, set_table
    return None


def _numpy_state(generator: Any) -> dict[str, Any]:
    children = _children(getattr(generator.bit_generator, "seed_seq", None))
    return {**generator.bit_generator.state, **({CHILDREN: children} if children else {})}


def _set_numpy_state(generator: Any, copy: Any) -> None:
    generator.bit_generator.state = {name: value for name, value in copy.items() if name != CHILDREN}
    if (sequence := getattr(generator.bit_generator, "seed_seq", None)) is not None:
        _set_children(sequence, copy.get(CHILDREN, 0))


def _children(sequence: Any) -> int:
    """How many children a seed sequence has: ``spawn()`` counts them."""
    return int(getattr(sequence, "n_children_spawned", 0))


def _set_children(sequence: Any, count: int) -> None:
    """Raises TrainingError where it has more, and its numpy cannot count down."""
    if _children(sequence) > count:
        with suppress(AttributeError, TypeError, ValueError):  # no function of numpy sets it, but reading a pickle does
            _, _, (entropy, _, *more) = sequence.__reduce__()
            sequence.__setstate_cython__((entropy, count, *more))
    if (missing := count - _children(sequence)) < 0:
        raise TrainingError("a seed sequence of numpy has more children than it had, and spawn() cannot be undone")
    if missing:
        sequence.spawn(missing)


def _memory_file(file: io.BytesIO | io.StringIO) -> dict[str, Any]:
    content = file.getvalue()
    whole = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content and type(content) is bytes else content
    return {"content": whole, "at": file.tell()}


def new_object(kind: str, state: dict[str, Any]) -> Any:
    """A new table, or a new file in memory, of the class ``kind``, with the state that `access` has read."""
    if kind.startswith("pandas."):
        return new_table(state)
    file = io.BytesIO() if kind == "_io.BytesIO" else io.StringIO()
    set_memory_file(file, state)
    return file


def set_memory_file(file: Any, state: dict[str, Any]) -> None:
    """Let a file in memory have the content and the position that `access` has read."""
    content = state["content"]
    file.seek(0)
    file.truncate()
    file.write(content.numpy().tobytes() if isinstance(content, torch.Tensor) else content)
    file.seek(state["at"])


def _load_state(value: Any, state: Any) -> None:
    if isinstance(value, torch.nn.Module) and isinstance(state, dict):
        fit_buffers(value, state)  # such as the weights of a loss, which may be set late
    load_scheduler(value, state) if is_scheduler(value) else value.load_state_dict(state)


def _optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state of another optimizer than the session's, with the parameters that it trains."""
    return {"state": optimizer.state_dict(), "parameters": dict(enumerate(_trained(optimizer)))}


def _set_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    load_exactly(optimizer, state["state"])
    with torch.no_grad():
        trained = _trained(optimizer)
        for place, value in state.get("parameters", {}).items():  # without those that the session carries
            trained[place].copy_(value)


def _trained(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def copy_tensor(value: torch.Tensor, before: Any) -> torch.Tensor:
    """A copy of a tensor, in the memory of an earlier copy where it fits."""
    is_leaf, value = value.requires_grad and value.is_leaf, value.detach()
    fits = isinstance(before, torch.Tensor) and _alike(before, value) and _lies_alike(before, value)
    copy = before.detach().copy_(value) if fits else value.clone()
    return copy.requires_grad_() if is_leaf else copy


def put_tensor(target: torch.Tensor, copy: Any) -> bool:
    """Change a tensor to hold a copy; False where that is not possible in place."""
    if not isinstance(copy, torch.Tensor) or not _alike(target, copy) or (target.requires_grad and not target.is_leaf):
        return False
    with torch.no_grad():
        target.copy_(copy)
    return True


def has_memory(value: Any) -> bool:
    """Whether `value` is a block of numbers: a dense tensor, an array of numpy without a mask, an ``array.array`` or a
    ``bytearray``.
    """
    if isinstance(value, torch.Tensor):
        return value.layout not in SPARSE
    return type(value) in (array, bytearray) or (is_array(value) and not hasattr(value, "mask") and not _is_file(value))


def _is_file(value: Any) -> bool:
    """Whether an array is the memory of a file, so that all members would write to it."""
    return getattr(value, "mode", "") in ("r+", "w+")


def copy_memory(value: Any, before: Any) -> Any:
    """A copy of what `has_memory`; of a tensor in the memory of an earlier copy where it fits."""
    if isinstance(value, torch.Tensor):
        return copy_tensor(value, before)
    return value.copy(order="K") if is_array(value) else value[:]


def put_memory(target: Any, copy: Any) -> bool:
    """Change what `has_memory` to hold a copy; False where that is not possible in place."""
    if isinstance(target, torch.Tensor):
        return put_tensor(target, copy)
    if is_array(target):
        fits = is_array(copy) and target.shape and (target.shape, target.dtype) == (copy.shape, copy.dtype)
        if fits:
            target[...] = copy
        return bool(fits)
    fits = type(target) is type(copy) and getattr(target, "typecode", "") == getattr(copy, "typecode", "")
    if fits:
        target[:] = copy
    return fits


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


def _lies_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    strided = one.layout is torch.strided and other.layout is torch.strided
    return not strided or one.stride() == other.stride() or (one.is_contiguous() and other.is_contiguous())


def _has_other_type(loaded: Any, saved: Any) -> bool:
    both = isinstance(loaded, torch.Tensor) and isinstance(saved, torch.Tensor)
    return both and loaded.dtype != saved.dtype


class OptimizerWatch:
    """Refuses an optimizer whose step changes what its ``state_dict()`` does not have, added parameters, and steps that
    the program takes itself.

    ``is_stepped_by_program``: the optimizer has this attribute, and its ``step()`` in a session only takes gradients.
    """

    def __init__(self, optimizer: AnyOptimizer) -> None:
        self._optimizer = optimizer
        self.is_stepped_by_program = getattr(optimizer, "is_stepped_by_program", False)
        self._held = self._parameters()
        self._steps = False  # whether the session steps the optimizer
        self._hooks: list[RemovableHandle] = []

    def refuse_own_steps(self) -> None:
        """The first step begins: from now on a step that the program takes itself raises TrainingError."""
        for one in ones(self._optimizer):
            if hasattr(one, "_optimizer_step_pre_hooks"):  # a wrapper has none
                if (earlier := _HOOKS.pop(one, None)) is not None:  # of a session that nobody closed
                    earlier.remove()
                _HOOKS[one] = one.register_step_pre_hook(self._refuse_own_step)
        self._hooks = [_HOOKS[one] for one in ones(self._optimizer) if one in _HOOKS]

    @property
    def hooks(self) -> list[int]:
        """The number of hooks of each optimizer."""
        kinds = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
        return [len(getattr(one, kind, ())) for one in ones(self._optimizer) for kind in kinds]

    def release(self) -> None:
        """The session has ended: the program may step the optimizer again."""
        for hook in self._hooks:
            hook.remove()

    def _refuse_own_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not self._steps:
            raise TrainingError(
                f"{type(optimizer).__name__}.step() was called in the loop, and step.run() had stepped it: leave "
                "optimizer.step() out"
            )

    def refuse_added(self) -> None:
        """Raise TrainingError where parameters were added or removed after the session was opened."""
        if self._parameters() != self._held:
            raise TrainingError(
                f"the optimizer held {len(self._held)} parameters when the session was opened, and holds others now: "
                "a member that joins later would not have them. Give all of them to the optimizer before hp.Session, "
                "and train some later by requires_grad_(False) and requires_grad_(True), or by a learning rate of 0"
            )

    def step(self, step: Callable[[], None], first: bool) -> None:
        """Step the optimizer by ``step``; if ``first`` raise TrainingError where it keeps state in attributes."""
        before, saved = (self._attributes(), self._saved()) if first else ({}, {})
        self._steps = True
        try:
            step()
        finally:
            self._steps = False
        if not first:
            return
        after, saved_after = self._attributes(), self._saved()
        kept = {(text, saved_after.get(name)) for name, text in saved.items()}
        found = {name: (before.get(name), after.get(name)) for name in {*before, *after}}
        if changed := sorted(name for name, texts in found.items() if texts[0] != texts[1] and texts not in kept):
            kind = changed[0][0]
            raise TrainingError(
                f"{kind}.step() changes {few([key[1] for key in changed])}, which is not in its state_dict(), so a "
                "member that joins later would not have it: keep it in optimizer.state[parameter] or in "
                "optimizer.param_groups, or pass another optimizer"
            )

    def _parameters(self) -> list[int]:
        return [id(parameter) for group in self._optimizer.param_groups for parameter in group["params"]]

    def _attributes(self) -> dict[tuple[str, str, int], str]:
        """Digests of the optimizers' own attributes, by class, name and turn; torch's classes keep only notes there."""
        found: dict[tuple[str, str, int], str] = {}
        for turn, one in enumerate(ones(self._optimizer)):
            if not _is_of_torch(one):
                own = {name: value for name, value in vars(one).items() if name not in _known()}
                found |= {(type(one).__name__, name, turn): _digest(value) for name, value in own.items()}
        return found

    def _saved(self) -> dict[str, str]:
        """Digests of what the optimizer's ``state_dict()`` has beside that of torch's, which several together have not.

        A class of the program saves its attributes so, and loads them.
        """
        if not isinstance(self._optimizer, torch.optim.Optimizer) or _is_of_torch(self._optimizer):
            return {}
        state = self._optimizer.state_dict()
        return {str(name): _digest(value) for name, value in state.items() if name not in ("state", "param_groups")}


def _is_of_torch(optimizer: Any) -> bool:
    return type(optimizer).__module__.startswith("torch.")


def _known() -> set[str]:
    """Attributes of every optimizer of torch."""
    plain = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)
    return {*_OF_TORCH, *vars(plain), "_opt_called", "_need_device_dtype_check_for_fused"}


def _digest(value: Any) -> str:
    return hashlib.sha256(_text(value).encode()).hexdigest()


def _text(value: Any) -> str:
    """A text that differs where plain values, tensors or containers of them do; for other objects their class."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{value.detach().cpu().tolist()}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_text(key)}:{_text(held)}" for key, held in value.items()) + "}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return "[" + ",".join(map(_text, value)) + "]"
    return type(value).__name__
