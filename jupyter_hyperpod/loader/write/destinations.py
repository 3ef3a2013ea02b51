"""Returns the destination that a URL names: a directory of this machine or a bucket."""

from __future__ import annotations

import os

from ...core.errors import SpecError
from ...core.names import public_name
from ..read.local import path_of
from ..read.sources import Opener
from ..urls import scheme_of
from .destination import Destination
from .directory import LocalDirectory


def destination_of(url: str, opener: Opener, file: bool = False) -> tuple[Destination, str]:
    """Return a directory and the name of a file in it: "" where `url` is the directory. Raises SpecError.

    It is a file where it ends in ``.safetensors``, or with `file`.
    """
    url = opener.shared.target(url)
    file = file or url.endswith(".safetensors")
    scheme = scheme_of(url)
    if scheme == "file":
        path = path_of(url)
        directory, name = os.path.split(path) if file else (path, "")
        return LocalDirectory(directory or ".", opener), name
    if scheme != "s3":
        raise SpecError(f"{public_name(url)}: models are written to s3:// and to files, not to {scheme}://")
    from .bucket import Bucket

    directory, _, name = url.rpartition("/") if file else (url.rstrip("/"), "", "")
    return Bucket(directory, opener), name
