"""The README's cell runs as it is printed, on a cluster and without one, with the same last line."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.storage.store import Store

TREE = Path(__file__).resolve().parents[1]
README = (TREE / "README.md").read_text()
PAGES = [TREE / "CONTRIBUTING.md", *sorted((TREE / "docs").rglob("*.md"))]
CELLS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_there_is_one_cell_and_every_make_target_exists() -> None:
    assert len(CELLS) == 1
    makefile = (TREE / "Makefile").read_text()
    targets = set(re.findall(r"\bmake ([a-z-]+)", "\n".join(re.findall(r"```bash\n(.*?)```", README, re.DOTALL))))
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"README names `make {target}`"


def test_every_path_in_the_readme_exists() -> None:
    table = re.findall(r"^\| (`.*?) \|", README, re.MULTILINE)
    paths = [path for row in table for path in re.findall(r"`([^`]+)`", row)]
    links = re.findall(r"\]\((?!https?:)([^)#]+)|(?:href|src|srcset)=\"([^\"]+)", README)
    assert len(paths) > 5
    for path in [*paths, *map("".join, links)]:
        assert (TREE / path).exists() or (TREE / "jupyter_hyperpod" / path).exists(), f"README names {path}"


def test_the_pictures_are_of_one_size_and_small_and_the_animation_moves() -> None:
    moving, light, dark = (TREE / "docs" / f"killed-node{end}" for end in (".gif", ".png", "-dark.png"))
    with Image.open(moving) as picture:
        size, frames = picture.size, picture.n_frames
    assert frames > 5 and moving.stat().st_size < 1_000_000
    for path, is_dark in ((light, False), (dark, True)):
        with Image.open(path) as picture:
            assert picture.size == size and (picture.convert("L").getpixel((1, 1)) < 128) is is_dark


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_and_link_of_a_page_exists(page: Path) -> None:
    text = page.read_text()
    for name in re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|ts|tsx|md))`", text):
        assert (TREE / name).exists() or (TREE / "jupyter_hyperpod" / name).exists(), f"{page.name} names {name}"
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_design_record_is_in_the_index_and_says_why() -> None:
    records = sorted((TREE / "docs" / "design").glob("[0-9]*.md"))
    index = (TREE / "docs" / "design" / "README.md").read_text()
    numbers = [record.name[:4] for record in records]
    assert len(set(numbers)) == len(numbers), "a number is given once; one that is missing belongs to work under way"
    for record in records:
        headings = re.findall(r"^## (.*)$", record.read_text(), re.MULTILINE)
        assert headings == ["Context", "Decision", "Consequence"], record.name
        assert record.read_text().startswith(f"# {record.name[:4]} "), record.name
        assert f"({record.name})" in index, f"the index lacks {record.name}"


def test_a_kill_passes_at_most_eight_files() -> None:
    page = (TREE / "docs" / "design" / "one-kill.md").read_text()
    hops = re.findall(r"^\| (\d) \| `", page, re.MULTILINE)
    assert [int(hop) for hop in hops] == list(range(9)), "from the command line, hop 0, to the screen"


@pytest.mark.timeout(300)
def test_the_cell_prints_the_same_with_and_without_a_cluster(shared_cluster: Store, tmp_path: Path) -> None:
    magic, _, source = CELLS[0].partition("\n")
    command, *words = shlex.split(magic)
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert command == "%%hyperpod"
    job = jobs.submit(
        shared_cluster,
        source,
        name=options["--name"],
        nodes=int(options["--nodes"]),
        elastic=options["--elastic"],
        working_directory=str(tmp_path),
    )
    view = jobs.wait(shared_cluster, job, timeout_s=200)
    assert view["state"] == "succeeded", view["error"] or view["reason"]
    on_cluster = "".join(line["text"] for line in view["output"] if line["stream"] == "stdout")

    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"loss \d\.\d{3}, state [0-9a-f]{12}\n", done.stdout)
    assert on_cluster == done.stdout
