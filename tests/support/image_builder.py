"""Builds images without a daemon and without a registry: buildah, with a base made of this machine's own files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.kubernetes import image
from tests.support.slurm.machine import PATH

ACCOUNTS = ("/usr/sbin/groupadd", "/usr/sbin/useradd")
BUILD_S = 300.0
# what the shell commands of a Dockerfile use, besides what the testbed's images have
APPLETS = "chmod chown ln mkdir printf".split()
TEXTS = {**image.TEXTS, "etc/shadow": "root:*:19000::::::\n", "etc/gshadow": "root:*::\n", "etc/login.defs": ""}


def missing() -> str:
    """What this machine lacks, as a sentence; "" where nothing does."""
    if os.geteuid() != 0:
        return f"building images here needs root, and this is user {os.geteuid()}"
    lacking = [tool for tool in ("buildah", "busybox", *ACCOUNTS) if shutil.which(tool, path=PATH) is None]
    return f"missing: {', '.join(lacking)} (Debian: apt-get install buildah busybox-static)" if lacking else ""


class ImageBuilder:
    """A store of images below a folder; ``close`` removes what it mounted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._driver = "overlay"
        if self.run("info", check=False).returncode:  # where the folder lies on an overlay itself
            self._driver = "vfs"

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`buildah WORD …`."""
        values = {**os.environ, "PATH": PATH, "TMPDIR": str(self._folder)}
        places = ("--root", str(self._folder / self._driver), "--runroot", str(self._folder / "running"))
        return subprocess.run(
            ["buildah", *places, "--storage-driver", self._driver, *words],
            capture_output=True,
            text=True,
            check=check,
            timeout=BUILD_S,
            env=values,
        )

    def base(self, names: Sequence[str], wheels: Path) -> None:
        """Make an image with this machine's Python, pip, a shell and these wheels, under each of the names."""
        archive = self._folder / "base.tar"
        with tarfile.open(archive, "w") as file:
            offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
            values = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/bin", **offline}
            told = image.add_image(file, "base.local/python:1", self._layer(wheels), ["/bin/sh"], values)
            image.add_text(file, "manifest.json", json.dumps([told]))
        self.run("pull", f"docker-archive:{archive}:base.local/python:1")
        archive.unlink()
        for name in names:
            self.run("tag", "base.local/python:1", name)

    def _layer(self, wheels: Path) -> bytes:
        python = Path(os.path.realpath(sys.executable))
        library = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}"
        own = Path(sys.base_prefix, library)
        pip = [path for name in ("pip", "pip-*.dist-info") for found in self._pip(own, name) for path in found]
        accounts = [Path(name) for name in ACCOUNTS]
        files = [*image.python_files(python), *pip, *accounts, *image.libraries_of(accounts)]
        links = {f"bin/{applet}": "/bin/busybox" for applet in APPLETS}
        links |= {f"usr/local/bin/{name}": str(python) for name in ("python", "python3")}
        links[f"usr/local/{library}"] = str(own)
        placed = {wheel: f"wheels/{wheel.name}" for wheel in wheels.iterdir()}
        return image.layer(files, links, TEXTS, placed)

    @staticmethod
    def _pip(own: Path, name: str) -> list[list[Path]]:
        return [
            [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
            for folder in (own / "site-packages").glob(name)
        ]

    def build(self, folder: Path, name: str) -> str:
        """Build what is in a folder, with layers that are kept; return what the builder said."""
        words = ("--isolation", "chroot", "--pull-never", "--layers", "--tag", name)
        done = self.run("build", *words, str(folder), check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def config(self, name: str) -> Mapping[str, object]:
        """The configuration of an image."""
        found: dict[str, object] = json.loads(self.run("inspect", "--type", "image", name).stdout)["OCIv1"]["config"]
        return found

    def execute(self, name: str, *command: str) -> str:
        """What a command prints in a container of an image, run as the image's own user; "" means its own command."""
        container = self.run("from", "--pull-never", name).stdout.split()[-1]
        try:
            return self.run("run", "--isolation", "chroot", container, "--", *command).stdout
        finally:
            self.run("rm", container)

    def close(self) -> None:
        """Remove all containers and images."""
        self.run("rm", "--all", check=False)
        self.run("rmi", "--all", "--force", check=False)
