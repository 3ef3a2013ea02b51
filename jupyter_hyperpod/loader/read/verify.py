"""Compares chunks with the manifest as they land."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.errors import LoaderError, SpecError
from ...core.names import public_name
from .. import manifest as sums
from .http_connection import Cancel
from .model_files import Files
from .plan import CHUNK_BYTES, Chunk, LoadPlan
from .source import read_start
from .sources import Opener


class Verifier:
    """Holds the expected checksum of every chunk of the opened files."""

    def __init__(self, files: Files, manifest: sums.ModelManifest) -> None:
        self._files = files
        self._chunk_bytes = manifest.chunk_bytes
        self._expected: Sequence[tuple[str, ...]] = [manifest.files[name].chunks for name in files.names]
        for name, source, header in zip(files.names, files.sources, files.headers, strict=True):
            content = read_start(source, header.data_offset)
            sums.compare(source.name, "its header", sums.digest(content), manifest.files[name].header)

    def check(self, chunk: Chunk, view: memoryview, cancel: Cancel) -> None:
        """Compare a landed chunk; a differing one is read once more. Raises LoaderError if it still differs."""
        expected = self._expected[chunk.file][chunk.place // self._chunk_bytes]
        if sums.digest(view) == expected:
            return
        self._files.read(chunk, view, cancel)
        what = f"bytes {chunk.offset}-{chunk.offset + chunk.bytes - 1}"
        sums.compare(self._files.sources[chunk.file].name, what, sums.digest(view), expected)


def read_manifest(url: str, opener: Opener) -> sums.ModelManifest:
    """Return a stored manifest. Raises LoaderError."""
    name, content = opener.read(url, sums.MAX_BYTES)
    return sums.decode(content, name)


def verifier(
    files: Files, load_plan: LoadPlan, opener: Opener, url: str, checksum: bool | str | None
) -> Verifier | None:
    """Return the verifier for the argument `checksum` of `load_model`. Raises LoaderError and SpecError."""
    if not checksum:
        return None
    if not load_plan.whole:
        raise SpecError(
            "checksum needs whole chunks, tp reads parts of them: use `jupyter hyperpod model verify` first"
        )
    where = checksum if isinstance(checksum, str) else sums.manifest_url(url)
    manifest = read_manifest(where, opener)
    if manifest.chunk_bytes != CHUNK_BYTES:
        raise LoaderError(public_name(where), f"checksums of {manifest.chunk_bytes} bytes each", f"of {CHUNK_BYTES}")
    sums.check_files(manifest, where, files)
    return Verifier(files, manifest)
