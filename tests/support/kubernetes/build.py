"""Build Kubernetes from Debian's own source package with Debian's Go, once, into a cache outside the tree.

    python -m tests.support.kubernetes.build

prints where the programs are. Needs the Debian packages in `PACKAGES` and a mirror of Debian's archive. Two cores take
about ten minutes, two million lines and 3 GB of disk, which are given back at the end.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PACKAGES = ("golang-go", "golang-github-modern-go-reflect2-dev", "dpkg-dev")
SUITE = "bookworm"  # the last one whose source package holds the servers; later ones hold kubectl alone
VERSION = "1.20.2"
SOURCE = "kubernetes=1.20.5+really1.20.2-1.1+deb12u1"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubemark", "kubectl")
TAGS = "providerless,dockerless"
MODULE = "k8s.io/kubernetes"
# The copy in Kubernetes crashes the API server at its first custom resource where Go is newer than 1.17.
REFLECT2 = Path("/usr/share/gocode/src/github.com/modern-go/reflect2")
OPENAPI = "pkg/generated/openapi"
UNSERVED = ("staging/src/k8s.io/code-generator/", "staging/src/k8s.io/sample-apiserver/")
RECIPE = {"source": SOURCE, "programs": PROGRAMS, "tags": TAGS, "reflect2": "Debian's", "openapi": OPENAPI}
KEY = hashlib.sha256(json.dumps(RECIPE, sort_keys=True).encode()).hexdigest()[:12]
GO = Path("/usr/lib/go/bin")
SAY_S = 15.0


def cache() -> Path:
    """Where testbeds keep what takes long to make."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "hyperpod-testbed"


def programs() -> Path:
    """The directory of the programs of this recipe, which exists where they are built."""
    return cache() / f"kubernetes-{VERSION}-{KEY}"


def build() -> Path:
    """Return where the programs are, after building them where they are not. Raises RuntimeError where that fails."""
    if programs().is_dir():
        return programs()
    with _alone(), _workshop() as directory:
        if not programs().is_dir():  # somebody else may have built them meanwhile
            began = time.monotonic()
            source = _fetch(directory)
            _mend(source)
            go = Go(directory, source)
            _describe_the_api(go)
            made = _compile(go)
            made.rename(programs())
            say(f"Kubernetes {VERSION} is built: {time.monotonic() - began:.0f} s, {programs()}")
    return programs()


def say(line: str) -> None:
    print(f"   {line}", flush=True)


@contextmanager
def _alone() -> Iterator[None]:
    """Wait until nobody else builds; the lock ends with the process."""
    cache().mkdir(parents=True, exist_ok=True)
    with open(cache() / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"somebody else builds in {cache()}: waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _workshop() -> Iterator[Path]:
    """A directory beside the result, without what builds that were killed have left there."""
    for left in cache().glob("building-*"):
        shutil.rmtree(left, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix="building-", dir=cache()))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _fetch(directory: Path) -> Path:
    """Get the source package, which apt checks by the archive's signature; this machine's own apt stays as it is."""
    say(f"fetching {SOURCE} from Debian {SUITE}")
    apt = directory / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True)
    (apt / "sources.list").write_text(f"deb-src {archive()} {SUITE} main\n")
    options = {
        "Dir::Etc::SourceList": apt / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": apt / "lists",
        "Dir::Cache": apt / "cache",
        "APT::Sandbox::User": "",  # a user of its own may not write here
    }
    get = ["apt-get", "-qq", *(f"--option={name}={value}" for name, value in options.items())]
    call([*get, "update"], directory)
    call([*get, "source", "--only-source", SOURCE], directory)
    (unpacked,) = (path for path in directory.glob("kubernetes-*") if path.is_dir())
    source = directory / "go" / "src" / MODULE
    source.parent.mkdir(parents=True)
    return unpacked.rename(source)


def archive() -> str:
    """The mirror of Debian's archive that this machine uses. Raises RuntimeError where it uses none."""
    ask = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT) $(ORIGIN)", "Created-By: Packages"]
    for line in call(ask, Path("/")).splitlines():
        address, component, origin = [*line.split(maxsplit=2), "", ""][:3]
        if (component, origin) == ("main", "Debian") and not address.rstrip("/").endswith("-security"):
            return address
    raise RuntimeError("apt knows no mirror of Debian's archive: add one to /etc/apt/sources.list, then apt-get update")


def _mend(source: Path) -> None:
    vendored = source / "vendor" / "github.com" / "modern-go" / "reflect2"
    if not REFLECT2.is_dir():
        raise RuntimeError(f"{REFLECT2} is missing (Debian: apt-get install {' '.join(PACKAGES)})")
    shutil.rmtree(vendored)
    shutil.copytree(REFLECT2, vendored, ignore=shutil.ignore_patterns("*_test.go"))


class Go:
    """Debian's Go in a directory of its own: no network, nothing of the user's home."""

    def __init__(self, directory: Path, source: Path) -> None:
        self.directory, self.source = directory, source
        self.environment = {
            "PATH": f"{GO}:{os.defpath}",
            "HOME": str(directory),
            "GOPATH": str(directory / "go"),
            "GOCACHE": str(directory / "compiled"),
            "GOTMPDIR": str(directory),
            "GO111MODULE": "off",
            "GOPROXY": "off",
            "GOFLAGS": "-p=2",
            "CGO_ENABLED": "0",
        }

    def __call__(self, *arguments: str) -> str:
        return call(["go", *arguments], self.source, self.environment)

    def followed(self, *arguments: str, total: int) -> None:
        """The same, and say how far it is: with -v each package that is compiled makes one line."""
        log = self.directory / "go.log"
        stop = threading.Event()

        def tell() -> None:
            while not stop.wait(SAY_S):
                say(f"{len(log.read_text(errors='replace').splitlines())} of {total} packages")

        with open(log, "wb") as said:
            teller = threading.Thread(target=tell, daemon=True)
            teller.start()
            try:
                done = subprocess.run(
                    ["go", *arguments], cwd=self.source, env=self.environment, stdout=said, stderr=said, check=False
                )
            finally:
                stop.set()
                teller.join()
        if done.returncode:
            raise RuntimeError(f"go {arguments[0]} ended with {done.returncode}:\n{log.read_text()[-3000:]}")


def _describe_the_api(go: Go) -> None:
    """Generate the one file that neither Kubernetes nor Debian ships: the descriptions of all types of the API."""
    say("generating the descriptions of the API")
    generator = go.directory / "openapi-gen"
    go("build", "-o", str(generator), "./vendor/k8s.io/kube-openapi/cmd/openapi-gen")
    tag = ["grep", "-rl", "--include=*.go", "--exclude=*_test.go", "^// +k8s:openapi-gen=true"]
    tagged = call([*tag, "pkg", "staging/src/k8s.io"], go.source).split()
    folders = sorted({str(Path(path).parent) for path in tagged if not path.startswith(UNSERVED)})
    told = {
        "input-dirs": ",".join(f"{MODULE}/{folder.replace('staging/src/', 'vendor/')}" for folder in folders),
        "output-package": f"{MODULE}/{OPENAPI}",
        "output-file-base": "zz_generated.openapi",
        "output-base": go.directory / "go" / "src",
        "go-header-file": go.source / "vendor/k8s.io/code-generator/hack/boilerplate.go.txt",
        "report-filename": go.directory / "violations",
    }
    call([str(generator), *(f"--{name}={value}" for name, value in told.items())], go.source, go.environment)


def _compile(go: Go) -> Path:
    made = go.directory / "programs"
    commands = [f"./cmd/{name}" for name in PROGRAMS]
    tags = f"-tags={TAGS}"
    total = len(go("list", "-deps", tags, *commands).split())
    say(f"compiling {len(commands)} programs out of {total} packages")
    values = {"gitVersion": f"v{VERSION}", "gitMajor": "1", "gitMinor": "20", "gitTreeState": "clean"}
    packages = [f"{MODULE}/vendor/k8s.io/{name}" for name in ("client-go/pkg/version", "component-base/version")]
    stamps = " ".join(f"-X {package}.{name}={value}" for package in packages for name, value in values.items())
    made.mkdir()
    flags = [tags, "-trimpath", f"-ldflags=-s -w {stamps}", "-v", "-o", f"{made}/"]
    go.followed("build", *flags, *commands, total=total)
    return made


def call(command: Sequence[str], place: Path, environment: dict[str, str] | None = None) -> str:
    """Run a command and return what it prints. Raises RuntimeError where it fails."""
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{(done.stderr + done.stdout)[-3000:]}")
    return done.stdout


def main() -> int:
    try:
        print(build())
    except RuntimeError as error:
        print(f"Kubernetes cannot be built: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
