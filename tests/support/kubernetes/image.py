"""The images of the testbed's pods, made of this machine's own files: its Python with the libraries it loads, busybox.

No registry is asked. Files keep their paths, so a virtual environment that a pod mounts from the host works in it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.support.kubernetes.settings import IMAGE, PAUSE
from tests.support.slurm.machine import PATH

INSTALLED = {"site-packages", "dist-packages"}
LEFT_OUT = {"test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3"} | INSTALLED
WINDOWS = "_tkinter"  # the one module that loads a window system's libraries
# What compiled packages load beside it: the rest of the C library, and the C++ library.
ALSO_LOADED = (
    *("libm.so.6", "libmvec.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1", "libresolv.so.2"),
    *("libnss_dns.so.2", "libgcc_s.so.1", "libstdc++.so.6"),
)
APPLETS = "sh cat date echo env grep head kill ls ps rm sed sleep sort tail true".split()
TEXTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


def write(path: Path) -> None:
    """Write both images into one archive that containerd imports."""
    python = Path(os.path.realpath(sys.executable))
    found = layer(python_files(python), {"usr/bin/python3": str(python)})
    package = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}  # pods import what tests do
    with tarfile.open(path, "w") as archive:
        described = [
            add_image(archive, IMAGE, found, ["/bin/sh"], package),
            add_image(archive, PAUSE, layer((), {}), ["/bin/busybox", "sleep", "2147483647"]),
        ]
        add_text(archive, "manifest.json", json.dumps(described))


def add_image(
    archive: tarfile.TarFile, name: str, layer: bytes, command: list[str], environment: Mapping[str, str] | None = None
) -> dict[str, object]:
    """Add an image of one layer to an archive; return what the archive's manifest says of it."""
    digest = hashlib.sha256(layer).hexdigest()
    values = {"PATH": "/usr/bin:/bin", "HOME": "/root", **(environment or {})}
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": command, "Env": [f"{key}={value}" for key, value in values.items()], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "the tests"}],  # a builder counts them beside the layers
    }
    text = json.dumps(config).encode()
    names = f"{hashlib.sha256(text).hexdigest()}.json", f"{digest}.tar"
    _add(archive, names[0], text)
    _add(archive, names[1], layer)
    return {"Config": names[0], "RepoTags": [name], "Layers": [names[1]]}


def layer(
    files: Iterable[Path],
    links: Mapping[str, str],
    texts: Mapping[str, str] = TEXTS,
    placed: Mapping[Path, str] | None = None,
) -> bytes:
    """A root file system: the files at their own paths, what they link to, and a shell.

    ``placed``: files that lie elsewhere in it; ``links`` and ``texts`` are made.
    """
    busybox = os.path.realpath(shutil.which("busybox", path=PATH) or "busybox")
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as system:
        for directory in ("tmp", "run", "root", "proc", "sys", "dev", "etc", "bin", "usr", "usr/bin", "var"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if directory == "tmp" else 0o755
            system.addfile(entry)
        for name, text in texts.items():
            add_text(system, name, text)
        system.add(busybox, "bin/busybox", recursive=False)
        for path in sorted({path for file in files for path in _with_targets(file)}):
            system.add(path, str(path).lstrip("/"), recursive=False)
        for path, name in (placed or {}).items():
            system.add(path, name, recursive=False)
        fixed = {"var/run": "/run", **{f"bin/{applet}": "/bin/busybox" for applet in APPLETS}}
        for name, target in {**fixed, **links}.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            system.addfile(entry)
    return made.getvalue()


def python_files(python: Path) -> Iterator[Path]:
    """The interpreter, its standard library and every shared library that one of them loads."""
    own = sysconfig.get_paths(vars={"base": sys.base_prefix, "platbase": sys.base_exec_prefix})
    loaded = [python]
    for library in dict.fromkeys((own["stdlib"], own["platstdlib"])):
        for directory, names, files in os.walk(library):
            names[:] = [name for name in names if name not in LEFT_OUT and not name.startswith("config-")]
            paths = [Path(directory, name) for name in files if not name.startswith(WINDOWS)]
            yield from paths
            loaded += [path for path in paths if path.suffix == ".so"]
    yield Path(sys.executable)  # and every link on the way from there to the interpreter
    yield from libraries_of(loaded)


def libraries_of(programs: Sequence[Path]) -> Iterator[Path]:
    """The shared libraries that programs load, and those that compiled packages load beside them."""
    told = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=True).stdout
    needed = (line for line in told.splitlines() if not line.endswith(":"))  # that names a program, not a library
    found = {Path(word) for line in needed for word in line.split() if word.startswith("/")}
    yield from (path for path in found if path.exists())
    beside = {path.parent for path in found if path.name.startswith("libc.so")}
    yield from (place / name for place in beside for name in ALSO_LOADED if (place / name).exists())


def _with_targets(path: Path) -> Iterator[Path]:
    """The path as it is written and, where it is a link, what it links to. Links of directories become directories."""
    place = Path(os.path.abspath(path))
    while place.is_symlink():
        yield place
        place = Path(os.path.abspath(place.parent / os.readlink(place)))
    yield place


def add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    """Add a file with a text to an archive."""
    _add(archive, name, text.encode())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o644
    archive.addfile(entry, io.BytesIO(content))
