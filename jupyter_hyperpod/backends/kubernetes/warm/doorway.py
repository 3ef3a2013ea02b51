"""How an order reaches the keeper of a pod: through two pipes in the pod's memory, by a shell that `exec` starts."""

from __future__ import annotations

MEMORY = "/dev/shm"  # a volume of the pod's own
ASKED, ANSWER = "hyperpod.next", "hyperpod.answer"
TAKEN, REFUSED = "taken", "refused"
ABSENT = 3
# Only words of the shell itself, so nothing is started; lines, because older servers cannot tell the end of an input.
SAY = (
    'IFS= read -r line || exit 1; [ -p "$1" ] || exit "$3"; printf "%s\\n" "$line" >"$1"; '
    'IFS= read -r answer <"$2"; printf "%s\\n" "$answer"'
)


def command() -> list[str]:
    """What is run in the pod; the order is a line of its standard input."""
    return ["/bin/sh", "-c", SAY, "say", f"{MEMORY}/{ASKED}", f"{MEMORY}/{ANSWER}", str(ABSENT)]
