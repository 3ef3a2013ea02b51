"""The folder of a job that is gone when the job starts."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.runtime.conftest import Submit


def test_a_job_without_its_folder_works_in_one_of_its_own_and_says_so(job: Submit, tmp_path: Path) -> None:
    """Not in the cluster's, where what it writes would be lost among the supervisor's files."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.txt").write_text("kept")
    kept = job("print(open('notes.txt').read())", nodes=1, working_directory=str(folder))
    kept.finish()
    shutil.rmtree(folder)
    run = job(
        "import os\nopen('result.txt', 'w').write('1')\nprint(os.getcwd())", nodes=1, working_directory=str(folder)
    )
    run.finish()
    own = run.store.job(run.job_id).path / "folder"
    assert set(kept.text().values()) == {"kept\n"} and set(run.text().values()) == {f"{own}\n"}
    assert (own / "result.txt").read_text() == "1"
    told = f"the folder {folder}, from which the job was submitted, is gone"
    assert sum(told in event.data["text"] for event in run.of_kind("warning.raised")) == 1
