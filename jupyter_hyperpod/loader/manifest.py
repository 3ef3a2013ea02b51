"""The manifest of a model: checksums of all its chunks, stored beside it, which a load can verify.

XXH3 (64 bits) finds accidental damage, not deliberate forgery.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ..core.errors import LoaderError, SpecError
from ..core.names import public_name
from .header import INDEX_SUFFIX, SINGLE
from .read.model_files import Files
from .urls import beside, inside, path_in

ALGORITHM = "xxh3_64"
SUFFIX = ".manifest.json"
FORMAT = "jupyter_hyperpod model manifest 1"
MAX_BYTES = 100_000_000
MAX_CHUNK_BYTES = 2**30  # each verifying thread holds one


@dataclass(frozen=True, slots=True)
class FileSums:
    """The size of one file, the checksum of its header, and those of its data in chunks, from the data's start."""

    bytes: int
    header: str
    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelManifest:
    """Checksums of a model's files, by file name."""

    chunk_bytes: int
    files: Mapping[str, FileSums]

    def encode(self) -> bytes:
        files = {name: asdict(sums) for name, sums in self.files.items()}
        record = {"format": FORMAT, "algorithm": ALGORITHM, "chunk_bytes": self.chunk_bytes, "files": files}
        return json.dumps(record, indent=1).encode() + b"\n"


def decode(content: bytes, source: str) -> ModelManifest:
    """Inverse of `ModelManifest.encode`. Raises LoaderError."""
    try:
        record = json.loads(content)
        if record["format"] != FORMAT or record["algorithm"] != ALGORITHM:
            raise LoaderError(source, f"{record['format']!r} with {record['algorithm']!r}", f"{FORMAT!r}, {ALGORITHM}")
        files = {
            name: FileSums(int(sums["bytes"]), str(sums["header"]), tuple(map(str, sums["chunks"])))
            for name, sums in record["files"].items()
        }
        if not 0 < (chunk_bytes := int(record["chunk_bytes"])) <= MAX_CHUNK_BYTES:
            raise LoaderError(source, f"chunks of {chunk_bytes} bytes", f"1 to {MAX_CHUNK_BYTES}")
        return ModelManifest(chunk_bytes, files)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LoaderError(source, f"no manifest ({type(error).__name__}: {error})", "a manifest of a model") from None


def manifest_url(url: str) -> str:
    """Return where the manifest of the model `url` is: beside it."""
    name = path_in(url).rpartition("/")[2]
    if name.endswith((".safetensors", INDEX_SUFFIX)):
        return beside(url, name.removesuffix(INDEX_SUFFIX) + SUFFIX)
    return inside(url, SINGLE + SUFFIX)


def digest(*pieces: memoryview | bytes) -> str:
    """Return the checksum of pieces one after another, 16 hexadecimal digits.

    Raises SpecError where xxhash is not installed.
    """
    try:
        import xxhash
    except ModuleNotFoundError:
        raise SpecError("checksums need xxhash: pip install 'jupyter_hyperpod[load]'") from None
    if len(pieces) == 1:
        return xxhash.xxh3_64_hexdigest(pieces[0])
    whole = xxhash.xxh3_64()
    for piece in pieces:
        whole.update(piece)
    return whole.hexdigest()


def compare(source: str, what: str, found: str, expected: str) -> None:
    """Raise LoaderError where two checksums differ."""
    if found != expected:
        remedy = "these bytes differ from what was written"
        raise LoaderError(source, f"checksum {found} of {what}", f"{expected}, as the manifest says", remedy)


def check_files(manifest: ModelManifest, source: str, files: Files) -> None:
    """Raise LoaderError unless the manifest is of these files: their sizes, and a checksum of every chunk."""
    for name, file, header in zip(files.names, files.sources, files.headers, strict=True):
        sums = manifest.files.get(name)
        if sums is None:
            raise LoaderError(public_name(source), f"nothing about {name}", "its checksums", "write the manifest again")
        if sums.bytes != file.size:
            raise LoaderError(name, f"{file.size} bytes", f"{sums.bytes}, as the manifest says")
        wanted = -(-header.data_bytes // manifest.chunk_bytes)
        if len(sums.chunks) != wanted:
            found = f"{len(sums.chunks)} chunks in the manifest"
            raise LoaderError(file.name, found, f"{wanted}", "write the manifest again")
