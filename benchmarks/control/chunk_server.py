"""A process with the product's fan-out server, which has one chunk; it reads the secret as a line of hexadecimal."""

from __future__ import annotations

import os
import sys

from benchmarks.control.recorded import SUBJECT, chunk_bytes
from jupyter_hyperpod.loader.share.peers import ChunkServer


def main() -> None:
    """Print the port, and serve until the input ends."""
    secret = bytes.fromhex(sys.stdin.readline())
    content = os.memfd_create("chunk")
    os.pwrite(content, os.urandom(chunk_bytes()), 0)
    server = ChunkServer("127.0.0.1", secret, SUBJECT, content, lambda number: None if number else (0, chunk_bytes()))
    print(server.address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
