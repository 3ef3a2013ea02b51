"""What the scheduler of Kubernetes says of a pod for which it has no node, in plain English. Pure."""

from __future__ import annotations

import re

from ....core.units import plural

MOST = 3  # a reason is one line
# what follows counts the same nodes once more
PREEMPTION = re.compile(r"[. ]*(?:no new claims to deallocate,)? preemption: ")
COUNTED = re.compile(r"(\d+) (.+)")
CLAIM = re.compile(
    r"unbound.*persistentvolumeclaim|persistentvolumeclaim.*(?:not found|not bound|unbound)", re.IGNORECASE
)
UNBOUND = "a PersistentVolumeClaim of the job is not there, or has no volume yet"
# what the scheduler's words contain, in all versions since 1.20, and what is said of so many nodes
WORDS = tuple(
    (re.compile(pattern, re.IGNORECASE), words)
    for pattern, words in (
        (r"insufficient cpu$", "{nodes} {has} too few processors (cpu) left"),
        (r"insufficient memory$", "{nodes} {has} too little memory left"),
        (r"insufficient ([\w./-]*(?:gpu|neuron)[\w./-]*)", r"{nodes} {has} too few devices (\1) left"),
        (r"insufficient ([\w./-]+)", r"{nodes} {has} too little \1 left"),
        (r"too many pods", "{nodes} {has} no room for more pods"),
        (r"were unschedulable|taint.*/unschedulable", "{nodes} {is} cordoned"),
        (r"taint.*/(?:not-ready|unreachable)", "{nodes} {is} not ready"),
        (r"taint", "{nodes} {has} a taint that the job does not tolerate (--kubernetes tolerations=…)"),
        (r"pods? (?:affinity|anti-affinity)", "{nodes} {has} a pod of this job already"),
        (r"node selector|pod's node affinity", "{nodes} {has} other labels than the job asks for, or {is} avoided"),
    )
)


def explained(message: str) -> str:
    """The message with plain words before it, where it says something that is known here; else as it is."""
    before, _, told = PREEMPTION.split(message)[0].rstrip(". ").partition(": ")
    if CLAIM.search(message):
        return f"{UNBOUND}: {message}"
    if not before.endswith("nodes are available"):
        return message
    causes: dict[str, int] = {}
    for part in re.split(r", (?=\d+ )", told):
        counted = COUNTED.fullmatch(part)
        if counted and (words := _words(counted[2])):
            causes[words] = max(int(counted[1]), causes.get(words, 0))
    said = ", ".join(_said(words, count) for words, count in list(causes.items())[:MOST])
    return f"no node can take it: {said}: {message}" if said else message


def _words(cause: str) -> str:
    for pattern, words in WORDS:
        if found := pattern.search(cause):
            return found.expand(words)
    return ""


def _said(words: str, count: int) -> str:
    forms = {"has": "has", "is": "is"} if count == 1 else {"has": "have", "is": "are"}
    return words.format(nodes=plural(count, "node"), **forms)
