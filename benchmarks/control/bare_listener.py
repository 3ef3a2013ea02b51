"""Sockets behind which nobody is: connections are accepted and held, what they say is thrown away, all at low priority.

What strangers cost who call here is the cost of calling. It prints its ports, and ends when its input does.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys

from benchmarks.control.stranger_crowd import NICENESS
from jupyter_hyperpod.system.processes import raise_descriptor_limit

CHUNK = 1 << 16


def main() -> None:
    """Listen at as many ports as the first line of the input says."""
    os.nice(NICENESS)
    raise_descriptor_limit()
    doors = {socket.create_server(("127.0.0.1", 0), backlog=1024) for _ in range(int(sys.stdin.readline()))}
    print(json.dumps([door.getsockname()[1] for door in doors]), flush=True)
    with selectors.DefaultSelector() as selector:
        for source in (sys.stdin, *doors):
            selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    return
                assert isinstance(key.fileobj, socket.socket)
                if key.fileobj in doors:
                    caller, _ = key.fileobj.accept()
                    selector.register(caller, selectors.EVENT_READ)
                elif not heard(key.fileobj):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()


def heard(caller: socket.socket) -> bool:
    """Whether a caller has said something, and may say more."""
    try:
        return bool(caller.recv(CHUNK))
    except OSError:
        return False


if __name__ == "__main__":
    main()
