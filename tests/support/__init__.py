"""What tests and benchmarks share: S3 servers, a faulty proxy, clients of deployments, a SLURM of several nodes."""

import socket
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """A port of the loopback interface that was free just now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
