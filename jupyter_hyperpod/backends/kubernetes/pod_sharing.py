"""What pods share with the machine from which a job is submitted: its user, and directories."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ...core.backend_options import has_remote_head, pod_user
from ...system import portable
from . import manifests


def person(options: Mapping[str, str]) -> manifests.PodUser:
    """As whom pods run: like this process, unless other numbers are asked for; home is this process's where pods have
    that directory, too."""
    home = os.path.expanduser("~")
    there = not manifests.missing_directories(options, [home])
    others = tuple(sorted(set(os.getgroups()) - {portable.group_id()}))
    uid, gid = pod_user(options) or (portable.user_id(), portable.group_id())
    return manifests.PodUser(uid, gid, tuple(one for one in others if one != gid), home if there else "/tmp")


def foreign_user(options: Mapping[str, str]) -> str:
    """Why pods cannot run as the user whom a job names, as a sentence; "" where they can."""
    wanted, own = pod_user(options), portable.user_id()
    if wanted is None or wanted[0] == own or has_remote_head(options):
        return ""
    return (
        f"pods would run as user {wanted[0]} (--kubernetes user=…) and could not use this job store, which belongs to "
        f"user {own}: submit as user {wanted[0]}, or let the head of the job run in the cluster (--kubernetes head=pod)"
    )


def not_shared(options: Mapping[str, str], places: Sequence[str]) -> str:
    """Why pods cannot use these directories, as a sentence; "" where they can."""
    lacking = manifests.missing_directories(options, places)
    if not lacking:
        return ""
    return (
        f"pods would not see {lacking[0]}: it is in none of the directories that they share with this machine; name a "
        "volume claim (--kubernetes claim=NAME:/PATH) or a directory of the nodes (--kubernetes host-path=/PATH) that "
        "holds it at the same path"
    )
