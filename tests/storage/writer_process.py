"""A real process that appends to a journal until it is killed: ``python writer_process.py DIRECTORY NAME BYTES COUNT``.

The kernel takes at most CHUNK_BYTES of a write at a time, as network file systems do. The number of each record is
printed after `append` returned, so that the test knows what must be there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from jupyter_hyperpod.storage.journal import event_writer

CHUNK_BYTES = 1 << 20
write_whole = os.write


def write_at_most_a_chunk(descriptor: int, content: bytes) -> int:
    return write_whole(descriptor, content[:CHUNK_BYTES])


def main(directory: str, name: str, size: str, count: str) -> int:
    os.write = write_at_most_a_chunk
    text = name * (int(size) // len(name))
    with event_writer(Path(directory), name) as writer:
        for number in range(int(count)):
            event = writer.append("warning.raised", {"text": text, "number": number})
            sys.stdout.write(f"{event.seq}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
