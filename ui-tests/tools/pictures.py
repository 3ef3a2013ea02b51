"""Make the README's pictures from what a browser has shown: ``python pictures.py``, or `make pictures`.

A real server in an empty home, a real browser, a real cluster of this machine; only the size of the page is chosen.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

HERE = Path(__file__).resolve().parents[1]
DOCS = HERE.parent / "docs"
NAME = "killed-node"
COLOURS = 128
LAST_MS = 4000  # how long the end of the animation stays
MOST_BYTES = 1_000_000


def take(frames: Path) -> None:
    """Let a browser keep its pictures in this folder."""
    command = ["node_modules/.bin/playwright", "test", "--config", "pictures.config.ts"]
    subprocess.run(command, cwd=HERE, env=os.environ | {"HYPERPOD_FRAMES": str(frames)}, check=True)


def check(text: str) -> None:
    """Raise SystemExit where a page with this text says on which machine it was."""
    for what in (socket.gethostname(), str(HERE.parent), tempfile.gettempdir(), f"/{getpass.getuser()}"):
        if what in text:
            raise SystemExit(f"the page shows {what!r}, which is of this machine alone: no picture was written")


def animate(pictures: Sequence[Image.Image], times_ms: Sequence[int], path: Path) -> None:
    """Write pictures taken at these times as a GIF of the same pace. All of them have one palette."""
    first, *_ = pictures
    strip = Image.new("RGB", (first.width, first.height * 3))
    for at, picture in enumerate((first, pictures[len(pictures) // 2], pictures[-1])):
        strip.paste(picture, (0, at * first.height))
    palette = strip.quantize(COLOURS, dither=Image.Dither.NONE)
    parts = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    lasts = [after - before for before, after in zip(times_ms, times_ms[1:], strict=False)]
    parts[0].save(path, save_all=True, append_images=parts[1:], duration=[*lasts, LAST_MS], loop=0, optimize=True)


def write(frames: Path, docs: Path) -> list[Path]:
    """The pictures of the README, light and dark, and the animation."""
    names = {"light": docs / f"{NAME}.png", "dark": docs / f"{NAME}-dark.png"}
    for theme, path in names.items():
        picture = Image.open(frames / f"{theme}.png").convert("RGB")
        picture.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    taken = sorted(frames.glob("frame-*.png"))
    times_ms = [int(path.stem.removeprefix("frame-")) for path in taken]
    animation = docs / f"{NAME}.gif"
    animate([Image.open(path).convert("RGB") for path in taken], times_ms, animation)
    if (size := animation.stat().st_size) > MOST_BYTES:
        raise SystemExit(f"{animation} has {size:,} bytes, more than {MOST_BYTES:,}: take fewer pictures or colours")
    return [*names.values(), animation]


def main() -> None:
    frames = Path(tempfile.mkdtemp(prefix="hyperpod-pictures-"))
    try:
        take(frames)
        check((frames / "text").read_text())
        for path in write(frames, DOCS):
            print(f"{path.relative_to(HERE.parent)}: {path.stat().st_size:,} bytes, {Image.open(path).size}")
    finally:
        if "--keep" in sys.argv:
            print(frames)
        else:
            shutil.rmtree(frames)


if __name__ == "__main__":
    main()
