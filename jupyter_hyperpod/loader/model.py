"""`load_model`: loads a model's tensors from files, URLs or mounts, directly into place."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any, TypeVar, overload

import torch
from torch import nn

from ..core.errors import StoreError
from ..core.names import public_name
from ..storage.store import JobStore
from . import hub
from .read.assign import assign, check_fit
from .read.landing import HostLanding, Landing
from .read.local import FileSource
from .read.model_files import Files, closing_model, open_model
from .read.plan import EARLY_BYTES, LoadPlan, plan
from .read.progress import Callback, Meter
from .read.source import Options, merged
from .read.sources import Opener
from .read.stream import Stream, first_connections
from .read.tensor_parallel import LLAMA_RULES, Rule, check
from .read.verify import Verifier, verifier
from .reporting import telling
from .share.fanout import FanOut, sharing_job

M = TypeVar("M", bound=nn.Module)


@overload
def load_model(
    url: str | os.PathLike[str], model: None = None, *args: Any, **kwargs: Any
) -> dict[str, torch.Tensor]: ...
@overload
def load_model(url: str | os.PathLike[str], model: M, *args: Any, **kwargs: Any) -> M: ...
def load_model(
    url: str | os.PathLike[str],
    model: nn.Module | None = None,
    device: str | torch.device = "cpu",
    tp: tuple[int, int] = (0, 1),
    *,
    order: Sequence[str] | None = None,
    checksum: bool | str | None = None,
    progress: Callback | bool | None = None,
    endpoint_url: str | None = None,
    connections: int | None = None,
    tp_rules: Sequence[Rule] = LLAMA_RULES,
    options: Options | None = None,
    fanout: str = "auto",
) -> dict[str, torch.Tensor] | nn.Module:
    """Load a safetensors model: a file, an index with its shards, or a directory; a path, or a URL as ``s3://…``,
    ``https://…``, ``shared://NAME/path``, ``hf://ORGANISATION/NAME``.

    Returns name -> tensor, or `model` with its parameters and buffers replaced by what was loaded (so it may have been
    made on the meta device). Tensors share one block of memory, or the mapped file, which writing does not change.

    `tp` is (rank, size): only this rank's slices are read, by `tp_rules` (see `loader.read.tensor_parallel`). `order`
    names the tensors to load first; the default is the model's own order, else embeddings and blocks by number.
    `checksum` is True for the manifest beside the model, or a manifest's URL: every chunk is verified as it arrives.
    `progress` is called with `LoadProgress` about ten times per second, in this thread. None reports to a job's
    journal, or to the person at the notebook or terminal; False reports nothing. `connections` fixes their number.

    In a job, ranks that load the same tensors share one read of the object store (`loader.share.fanout`), unless
    `fanout` is "off": ranks of one host then share the pages of a tensor until one of them writes there.

    Raises LoaderError, which names the object, what was found and what was expected; then nothing was changed.
    """
    began_s = time.monotonic()
    url = os.fspath(url)
    check(tp)
    source = hub.hub_path(url, hub.MODEL) if hub.is_hub(url) else url
    early = first_connections() if connections is None else min(connections, first_connections())
    with closing(Opener(merged(options, endpoint_url), early - 1)) as opener:
        with telling(url, progress) as tell, closing_model(open_model(source, opener)) as files:
            if order is None and model is not None:
                order = list(model.state_dict())
            early_bytes = None if checksum else EARLY_BYTES  # checksums are of whole chunks
            cached = _cached_files(files, tp, torch.device(device), checksum)
            job = sharing_job(fanout, files)
            load_plan = plan(
                files.headers,
                tp,
                order,
                rules=tp_rules,
                early_bytes=early_bytes,
                cached=cached,
                aligned=job is None and not checksum,  # ranks that share memory share its huge pages
            )
            if model is not None:
                check_fit(model, load_plan, public_name(url))
            checks = verifier(files, load_plan, opener, source, checksum)
            landing = _land(files, load_plan, torch.device(device), checks, job)
            meter = Meter(load_plan, began_s)
            with closing(landing):
                if load_plan.chunks:
                    Stream(
                        load_plan.chunks,
                        landing.fetch,
                        meter,
                        opener.counters,
                        connections,
                        progress=tell,
                        sharers=landing.sharers,
                        reverify=landing.reverify if checksum else None,
                    ).run()
                elif tell is not None:
                    tell(meter.read())
                found = {tensor.name: landing.tensor(tensor) for tensor in load_plan.tensors}
    return found if model is None else assign(model, found)


def _cached_files(
    files: Files, tp: tuple[int, int], device: torch.device, checksum: bool | str | None
) -> frozenset[int]:
    """Return the files (indices) in the page cache: they will be mapped instead of fetched."""
    if tp[1] > 1 or device.type != "cpu" or checksum:
        return frozenset()
    sources = enumerate(files.sources)
    return frozenset(i for i, one in sources if isinstance(one, FileSource) and one.mappable and one.resident())


def _land(
    files: Files, load_plan: LoadPlan, device: torch.device, checks: Verifier | None, job: JobStore | None
) -> Landing:
    """Prepare a landing for the planned chunks; the ranks of `job` share it. Raises MemoryError."""
    if job is not None and load_plan.chunks:
        with suppress(OSError, StoreError):  # ranks that cannot reach each other load separately
            return FanOut(job, files, load_plan, checks, device)
    if device.type != "cpu":
        from .read.device import DeviceLanding

        return DeviceLanding(files, load_plan, device, checks)
    return HostLanding(files, load_plan, checks)
