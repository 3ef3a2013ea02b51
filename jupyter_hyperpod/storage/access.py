"""The modes of files and directories in a store: private, or readable by the group with which it is shared.

A directory says itself whether its files are shared: setgid, and open to its group. So every process that writes there
decides alike, without reading the settings again.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..system import portable


def file_mode(directory: Path) -> int:
    """The mode of a new file that readers of ``directory`` may read: 0600, or 0640 in a shared one; 0644 in the
    directory where members leave commands, which only they and the owner may enter."""
    try:
        found = os.stat(directory)
    except OSError:
        return 0o600
    mode = found.st_mode
    if portable.user_id() == 0 != found.st_uid:
        return 0o644  # what root writes in the store of another user, which its directories keep private
    if mode & stat.S_ISVTX and mode & stat.S_IWGRP:
        return 0o644
    return 0o640 if mode & stat.S_ISGID and mode & stat.S_IXGRP and not mode & stat.S_IWGRP else 0o600


def like_its_parent(path: Path) -> Path:
    """Open the new directory ``path`` to the group of the shared directory in which it is. Raises OSError."""
    if file_mode(path.parent) == 0o640 and stat.S_IMODE(os.stat(path).st_mode) != 0o2750:
        os.chmod(path, 0o2750)
    return path
