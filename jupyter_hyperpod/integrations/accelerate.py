"""The Accelerator of accelerate, whose training loop is a session's: one changed import, and members may come and go.

from jupyter_hyperpod.integrations.accelerate import Accelerator
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import accelerate
import torch
from torch.utils.data import DataLoader

from ..core.errors import SpecError, TrainingError
from ..runtime.checkpoint.store import Checkpoint
from ..runtime.program.frames import callers
from ..runtime.session.loop import Step
from ..runtime.session.session import Session
from ..runtime.worker import cell_end
from .accelerate_refusals import OUTSIDE, batch_of, refuse_accelerator, refuse_arguments, refuse_prepared
from .loop_turns import Compiled, Running, Turn, compiled_loop
from .one_process import hide_torchrun, micro_batch_of
from .prepared import PreparedLoader, PreparedOptimizer

hide_torchrun()


class Accelerator(accelerate.Accelerator):
    """`accelerate.Accelerator`, whose loop over a prepared loader is an `hp.Session`: the same bits on any number of
    members.

    A turn of the loop takes the loader's batch, whatever the number of members, and is a step of the session.
    ``micro_batch`` samples are computed together: by default the batch is cut into up to eight. ``seed`` is that of the
    session, ``checkpoint``, too. All other arguments are those of accelerate. Raises SpecError for what cannot be kept.
    """

    _is_main = True
    _session: Session | None = None

    def __init__(
        self,
        *arguments: Any,
        micro_batch: int | None = None,
        seed: int = 0,
        checkpoint: str | Checkpoint | None = None,
        **named: Any,
    ) -> None:
        refuse_arguments(named)
        super().__init__(*arguments, **named)
        refuse_accelerator(self)
        self._micro_batch, self._seed, self._checkpoint = micro_batch, seed, checkpoint
        self._is_main = int(os.environ.get("RANK", "0")) == 0
        self._loader: PreparedLoader | None = None  # the one that is trained on
        self._running: Running | None = None
        self._begin = 0  # steps before the present loop
        self._step: Step | None = None
        self._trackers_of: tuple[Any, ...] | None = None

    # ---- what travels -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The place in the loop, and in the accumulation of gradients."""
        return {"step": self.step, "begin": self._begin, "sync_gradients": self.sync_gradients}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take what `state_dict` returned."""
        self.step, self._begin = state["step"], state["begin"]
        self.gradient_state.sync_gradients = state["sync_gradients"]

    # ---- prepare ----------------------------------------------------------------------------------------------------

    def prepare(self, *given: Any, device_placement: list[bool] | None = None) -> Any:
        """As accelerate's; loaders, models, optimizers and schedulers come back, anything else as it is."""
        if self._session is not None:
            trained = [one for one in given if isinstance(one, torch.optim.Optimizer)]
            if trained:
                raise SpecError("prepare() was given an optimizer after training had begun: make a new Accelerator")
        placed: list[Any] = device_placement or [None] * len(given)
        first = [self._prepared(one, place) for one, place in zip(given, placed, strict=True)]
        found = tuple(self.prepare_scheduler(one) if _is_scheduler(one) else one for one in first)
        return found if len(found) != 1 else found[0]

    def _prepared(self, one: Any, place: bool | None) -> Any:
        if isinstance(one, torch.nn.Module):
            return self.prepare_model(one, device_placement=place)
        if isinstance(one, DataLoader):
            return self.prepare_data_loader(one, device_placement=place)
        if isinstance(one, torch.optim.Optimizer):
            return self.prepare_optimizer(one, device_placement=place)
        return one

    def prepare_data_loader(self, data_loader: Any, *arguments: Any, **named: Any) -> Any:
        """A loader whose loop is the session's where its body calls `backward`."""
        if isinstance(data_loader, PreparedLoader):
            return data_loader
        plain = super().prepare_data_loader(data_loader, *arguments, **named)
        return PreparedLoader(data_loader, plain, self._iterate)

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None) -> Any:
        """An optimizer that the session gives its gradients."""
        if not isinstance(optimizer, PreparedOptimizer):
            placed = self.device_placement if device_placement is None else device_placement
            optimizer = PreparedOptimizer(optimizer, placed)
            self._optimizers.append(optimizer)
        return optimizer

    def epochs(self, count: int, loader: Any) -> Iterator[int]:
        """The numbers of ``count`` epochs over the prepared ``loader`` that is trained on, from 0.

        A member that joins later begins in the epoch in which its peers are; with ``range(count)`` it runs what follows
        the earlier epochs, too. Raises SpecError for another loader than a prepared one.
        """
        if not isinstance(loader, PreparedLoader):
            raise SpecError(
                f"accelerator.epochs() was given a {type(loader).__name__}; expected the loader that prepare() returned"
            )
        session = self._open(loader)
        self._is_main = session.is_main
        return session.epochs(count)

    # ---- the loop ---------------------------------------------------------------------------------------------------

    def backward(self, loss: Any, **named: Any) -> None:
        """Reached only outside a loop over a prepared loader. Raises TrainingError."""
        raise TrainingError(OUTSIDE)

    def _iterate(self, loader: PreparedLoader) -> Iterator[Any]:
        if self._loader is loader and self._running is not None:
            return self._turns(loader)
        frames = callers()
        compiled = compiled_loop(frames[0], self) if frames else None
        if compiled is None:
            return iter(loader.plain)
        self._train(compiled, Running(compiled, frames[0]), loader)
        return iter(())

    def _train(self, compiled: Compiled, running: Running, loader: PreparedLoader) -> None:
        self._open(loader)
        before, self._running = self._running, running
        try:
            running(Turn(self._run, self.gradient_accumulation_steps, lambda: self._index))
        finally:
            self._running = before

    def _turns(self, loader: PreparedLoader) -> Iterator[None]:
        """One turn of the loop per step of the session."""
        session, running, optimizer = self._session, self._running, self._optimizers[0]
        assert session is not None and running is not None
        turns, self._begin = len(loader), session.step
        self.gradient_state._add_dataloader(loader)
        loader.remainder = 0
        running.push()
        try:
            with optimizer.in_session():
                for step in session.turns(turns, lambda: self._begin + turns):
                    self._step = step
                    running.pull()
                    optimizer.show()
                    self._is_main = session.is_main
                    loader.end_of_dataloader = self._index + 1 == turns
                    try:
                        with optimizer.in_session(False):
                            yield
                    finally:
                        running.push()
                        optimizer.settle()
        finally:
            running.pull()
            self._is_main = session.is_main
            loader.end_of_dataloader = False
            self.gradient_state._remove_dataloader(loader)

    def _run(self, head: Callable[[Any], Any]) -> Mapping[str, float]:
        assert self._step is not None
        self._optimizers[0].settle()
        with self._optimizers[0].in_session():
            self._step.run(head)
        self._optimizers[0].stand_in()
        self._is_main = self._session is not None and self._session.is_main
        return self._step.metrics

    @property
    def _index(self) -> int:
        """The turn of the present loop, from 0."""
        return 0 if self._step is None else self._step.index - self._begin

    def _open(self, loader: PreparedLoader) -> Session:
        if self._session is not None:
            if self._loader is not loader:
                raise SpecError("a second prepared loader is trained on: put both data sets into one loader")
            return self._session
        refuse_prepared(self)
        batch = batch_of(loader)
        cell_end.run(None)  # of an earlier Accelerator
        models = self._models
        model = models[0] if len(models) == 1 else torch.nn.ModuleList(models)
        session = Session(
            model,
            self._optimizers[0],
            loader.given,
            global_batch=batch,
            micro_batch=self._micro_batch or micro_batch_of(batch),
            seed=self._seed,
            checkpoint=self._checkpoint,
        )
        session.count_turns("accelerator.epochs(n, loader)")
        session.register(accelerator=self)
        session.register(**{f"scheduler_{number}": one for number, one in enumerate(self._schedulers)})
        session.register(**{f"object_{number}": one for number, one in enumerate(self._custom_objects)})
        self._session, self._loader = session, loader
        cell_end.at_end(self._close)
        return session

    def _close(self, error: BaseException | None) -> None:
        session, self._session = self._session, None
        if session is not None:
            with self._optimizers[0].in_session():
                session.__exit__(None if error is None else type(error), error, None)
            self._is_main = session.is_main

    # ---- who writes -------------------------------------------------------------------------------------------------

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0, which writes: it may be another process after a loss."""
        return self._is_main

    is_local_main_process = is_last_process = is_main_process

    def print(self, *arguments: Any, **named: Any) -> None:
        """Print on rank 0."""
        if self._is_main:
            print(*arguments, **named)

    def on_main_process(self, function: Callable[..., Any] | None = None) -> Any:
        """A function that does its work on rank 0."""
        if function is None:
            return self.on_main_process
        chosen = function

        @functools.wraps(chosen)
        def only(*arguments: Any, **named: Any) -> Any:
            return chosen(*arguments, **named) if self._is_main else None

        return only

    on_local_main_process = on_last_process = on_main_process

    def on_process(self, function: Any = None, process_index: int | None = None) -> Any:
        """There is no process of a fixed number. Raises SpecError."""
        raise SpecError(f"on_process(process_index={process_index}) cannot be kept: write on_main_process")

    on_local_process = on_process

    def save(self, obj: Any, f: Any, safe_serialization: bool = False) -> None:
        """Write an object, on rank 0."""
        if self._is_main:
            super().save(obj, f, safe_serialization)

    def save_model(self, *arguments: Any, **named: Any) -> None:
        """Write the model, on rank 0."""
        if self._is_main:
            super().save_model(*arguments, **named)

    def save_state(self, output_dir: str | None = None, *arguments: Any, **named: Any) -> Any:
        """Write accelerate's state, on rank 0; a loss of a member does not need it."""
        if self._is_main:
            return super().save_state(output_dir, *arguments, **named)
        return output_dir

    def load_state(self, *arguments: Any, **named: Any) -> None:
        """Refused: raises SpecError."""
        raise SpecError(
            "load_state() does not know the place in the data: a session continues from checkpoints of its own. Write "
            "Accelerator(..., checkpoint='shared://runs/name') and leave load_state() out"
        )

    def skip_first_batches(self, *arguments: Any, **named: Any) -> Any:
        """Refused: raises SpecError."""
        raise SpecError(
            "skip_first_batches() was called: a session continues at its place in the data. Write "
            "Accelerator(..., checkpoint='shared://runs/name') and leave skip_first_batches() out"
        )

    # ---- trackers ---------------------------------------------------------------------------------------------------

    def init_trackers(self, *arguments: Any, **named: Any) -> None:
        """Open the trackers, on rank 0; another rank 0 opens its own."""
        self._trackers_of = (arguments, named)
        self._open_trackers()

    def log(self, values: dict[str, Any], step: int | None = None, log_kwargs: dict[str, Any] | None = None) -> None:
        """Log with the trackers, on rank 0."""
        if self._is_main:
            self._open_trackers()
            super().log(values, step=step, log_kwargs=log_kwargs or {})

    def _open_trackers(self) -> None:
        if self._is_main and self._trackers_of is not None:
            (arguments, named), self._trackers_of = self._trackers_of, None
            super().init_trackers(*arguments, **named)

    # ---- the end ----------------------------------------------------------------------------------------------------

    def end_training(self) -> None:
        """End the session, and close the trackers."""
        self._close(None)
        super().end_training()

    def free_memory(self, *objects: Any) -> Any:
        """End the session, and do what accelerate does."""
        self._close(None)
        return super().free_memory(*objects)

    clear = free_memory


def _is_scheduler(one: Any) -> bool:
    return isinstance(one, torch.optim.lr_scheduler.LRScheduler | torch.optim.lr_scheduler.ReduceLROnPlateau)
