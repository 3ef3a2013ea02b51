"""Make an environment with more than the one that is running: ``python environment.py DIRECTORY REQUIREMENT...``.

It sees the packages of this interpreter, and has copies of what Jupyter keeps beside them: a Jupyter server hands out no
file of an extension that is a link. The requirements are installed without what they need: name all of it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path


def make(directory: Path, requirements: list[str]) -> None:
    venv.create(directory, symlinks=True)
    (site,) = directory.glob("lib/python*/site-packages")
    beneath = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"  # its .pth files are read, too
    (site / "beneath.pth").write_text(beneath, encoding="utf-8")
    for part in ("share/jupyter", "etc/jupyter"):
        if (kept := Path(sys.prefix, part)).exists():
            shutil.copytree(kept, directory / part)
    pip = [sys.executable, "-m", "pip", "--python", str(directory / "bin" / "python"), "--quiet"]
    subprocess.run([*pip, "install", "--no-deps", *requirements], check=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]), sys.argv[2:])
