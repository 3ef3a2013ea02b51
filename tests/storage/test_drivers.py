"""What each driver runs, to the word; and what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.mount_spec import DRIVERS as NAMES
from jupyter_hyperpod.core.mount_spec import MountSpec
from jupyter_hyperpod.mounts import credentials, drivers

PLACE = drivers.MountPaths("/mnt/x", "/store/mounts/x.cache", "/tmp/x.sock")


def spec(driver: str, source: str = "", **more: Any) -> MountSpec:
    path = "" if driver == "s3" else "/mnt/x"
    return MountSpec("x", path, path, driver=driver, source=source, **more)


GOLDEN = [
    (
        spec("nfs", "fs-1.example:/home", options={"vers": "4.1", "nconnect": "16"}),
        "mount -t nfs -o nosuid,nodev,hard,nconnect=16,vers=4.1 fs-1.example:/home /mnt/x",
        "umount /mnt/x",
        "umount -f -l /mnt/x",
    ),
    (
        spec("lustre", "fs-1.fsx.example@tcp:/abc", options={"noatime": ""}, read_only=True),
        "mount -t lustre -o nosuid,nodev,relatime,flock,noatime,ro fs-1.fsx.example@tcp:/abc /mnt/x",
        "umount /mnt/x",
        "umount -f -l /mnt/x",
    ),
    (
        spec("juicefs", "redis://h/1", options={"cache-size": "1024", "writeback": ""}, access="group"),
        "juicefs mount --no-usage-report --no-syslog --cache-dir /store/mounts/x.cache --cache-size 1024 --writeback "
        "-o allow_other redis://h/1 /mnt/x",
        "fusermount3 -u /mnt/x",
        "fusermount3 -u -z /mnt/x",
    ),
    (
        spec("seaweedfs", "h:8888/buckets/b", options={"dlm": "", "chunk-size-mb": "8"}, read_only=True),
        "weed -logtostderr mount -filer=h:8888 -filer.path=/buckets/b -dir=/mnt/x -cacheDir=/store/mounts/x.cache "
        "-localSocket=/tmp/x.sock -allowOthers=false -chunkSizeLimitMB=8 -dlm -readOnly",
        "fusermount3 -u /mnt/x",
        "fusermount3 -u -z /mnt/x",
    ),
    (
        spec("rclone", ":s3:bucket/p", options={"provider": "Other", "endpoint": "http://h:1"}, access="everyone"),
        "rclone mount --cache-dir /store/mounts/x.cache --dir-perms 0777 --file-perms 0666 --umask 000 --config "
        " --vfs-cache-mode full --s3-env-auth --s3-endpoint http://h:1 --s3-provider Other --allow-other "
        ":s3:bucket/p /mnt/x",
        "fusermount3 -u /mnt/x",
        "fusermount3 -u -z /mnt/x",
    ),
]


@pytest.mark.parametrize(("mount", "up", "down", "force"), GOLDEN, ids=lambda one: getattr(one, "driver", ""))
def test_commands(mount: MountSpec, up: str, down: str, force: str) -> None:
    found = drivers.commands(mount, PLACE)
    assert [" ".join(found.mount), " ".join(found.unmount), " ".join(found.force)] == [up, down, force]
    assert all(isinstance(word, str) and "\n" not in word for word in found.mount)


def test_every_driver_has_a_row_and_every_mounting_one_a_golden_command() -> None:
    assert set(drivers.DRIVERS) == set(NAMES)
    assert {one.name for one in drivers.DRIVERS.values() if one.mounts} == {mount.driver for mount, *_ in GOLDEN}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (spec("rclone", ":s3:b", options={"s3-secret-access-key": "x"}), "looks like a secret"),
        (spec("rclone", ":s3:b", options={"password": "x"}), "mode 0600"),
        (spec("nfs", "h:/e", options={"exec": "1"}), "unknown to driver 'nfs'; expected some of: actimeo"),
        (spec("nfs", "h:/e", options={"vers": "4,suid"}), "holds a comma"),
        (spec("lustre"), "needs a source: HOST@tcp:/NAME"),
        (spec("directory", "h:/e"), "takes no source"),
        (spec("s3", "/tmp"), "is no bucket"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: MountSpec, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        drivers.check(wrong)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"driver": "tape"}, "expected one of directory, nfs"),
        ({"notebook_path": "mnt"}, "expected an absolute path"),
        ({"notebook_path": "/"}, "below '/'"),
        ({"node_path": "/fsx/../etc"}, "without '..'"),
        ({"source": "redis://me:secret@h/1"}, "holds a password"),
        ({"source": "-o suid"}, "expected an address"),
        ({"access": "world"}, "expected one of private, group, everyone"),
        ({"quota_bytes": 0}, "at least 1"),
        ({"options": {"a b": "c"}}, "not of the form NAME=VALUE"),
        ({"options": {"a": "c\nd"}}, "not of the form NAME=VALUE"),
    ],
)
def test_a_mount_that_cannot_be_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        MountSpec(**({"name": "x", "notebook_path": "/a", "node_path": "/b", "driver": "nfs"} | fields))


def test_credentials_come_from_the_environment_or_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# mine\nexport AWS_ACCESS_KEY_ID='me'\nAWS_SECRET_ACCESS_KEY=s=1\n")
    file.chmod(0o600)
    environment = {"AWS_ACCESS_KEY_ID": "other", "AWS_PROFILE": "p", "AWS_SESSION_TOKEN": "others", "OTHER": "x"}
    mount = spec("s3", "s3://b")
    assert credentials.of(mount, environment) == {name: environment[name] for name in environment if name != "OTHER"}
    mount = spec("s3", "s3://b", credentials=str(file))
    mine = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "s=1"}
    assert credentials.of(mount, environment) == mine, "another account's token is not sent along"


@pytest.mark.parametrize("case", ["mode", "missing", "link", "line"])
def test_credentials_that_others_can_read_are_refused(tmp_path: Path, case: str) -> None:
    file = tmp_path / "keys"
    file.write_text("LD_PRELOAD=/x" if case == "line" else "AWS_PROFILE=p")
    file.chmod(0o640 if case == "mode" else 0o600)
    if case == "link":
        (tmp_path / "link").symlink_to(file)
        file = tmp_path / "link"
    if case == "missing":
        file.unlink()
    words = {"mode": "mode 0640; expected .* 0600", "line": "line 1 of"}.get(case, "cannot be read")
    with pytest.raises(SpecError, match=words):
        credentials.read(str(file), drivers.DRIVERS["s3"].secrets)
