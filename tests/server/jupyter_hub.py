"""A real JupyterHub with the configuration of docs/jupyterhub.md, its proxy, and people of the system with browsers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from html import unescape
from pathlib import Path
from typing import Any

import requests
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from tests.conftest import SHARED_MARK
from tests.leaks import wait_until_gone
from tests.server.client import Client
from tests.storage.people import pass_through

TREE = Path(__file__).resolve().parents[2]
PAGE = TREE / "docs" / "jupyterhub.md"
PROXY = TREE / "node_modules" / ".bin" / "configurable-http-proxy"
PEOPLE = {"ada": 61001, "bob": 61002, "carol": 61003, "dan": 61004}
PASSWORD = "the same for everybody"
ROOT = "jupyter_hyperpod/api/v1"
NAMED = "second"  # a named server
# the test's own: free ports, no PAM, rights that count at once, and the mark by which processes are found
FOR_THE_TEST = """
c.JupyterHub.bind_url = "http://127.0.0.1:{public}"
c.JupyterHub.hub_port = {hub}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api}"
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.ConfigurableHTTPProxy.pid_file = {pid_file!r}
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = {password!r}
c.JupyterHub.db_url = {database!r}
c.JupyterHub.cookie_secret_file = {secret!r}
c.Spawner.args += ["--HubOAuth.cache_max_age=1"]
c.Spawner.start_timeout = c.Spawner.http_timeout = 120
c.Spawner.environment = {environment!r}
"""


def example() -> str:
    """The configuration file of the administrator's page."""
    (found,) = re.findall(r"```python\n# jupyterhub_config.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


class Hub:
    """JupyterHub as root, in a view of the system in which `PEOPLE` have accounts."""

    def __init__(self, place: Path, mark: str) -> None:
        self.place, self.mark = place, mark
        self._accounts()
        ports = _free_ports(3)
        self.url = f"http://127.0.0.1:{ports[0]}"
        config = place / "jupyterhub_config.py"
        own = FOR_THE_TEST.format(
            **dict(zip(("public", "hub", "api"), ports, strict=True)),
            proxy=str(PROXY),
            pid_file=str(place / "proxy.pid"),
            password=PASSWORD,
            database=f"sqlite:///{place}/hub.sqlite",
            secret=str(place / "cookie_secret"),
            environment={SHARED_MARK: mark, "PYTHONPATH": str(TREE), "PYTHONNOUSERSITE": "1"},
        )
        config.write_text(example() + own)
        self._words = [str(Path(sys.executable).with_name("jupyterhub")), "--config", str(config)]

    def begin(self) -> None:
        """Start the Hub, which starts its proxy; returns when it answers."""
        with (self.place / "hub.log").open("w") as log:
            self.process = subprocess.Popen(
                self._seen_as(0, (0,), self._words),
                cwd=self.place,
                env=self._environment("root"),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.wait(self._answers, 120)

    def _accounts(self) -> None:
        lines, groups = ["root:x:0:0::/root:/bin/sh"], ["root:x:0:"]
        for name, uid in PEOPLE.items():
            home = self.place / name
            home.mkdir(mode=0o700)
            os.chown(home, uid, uid)
            lines.append(f"{name}:x:{uid}:{uid}::{home}:/bin/sh")
            groups.append(f"{name}:x:{uid}:")
        for name, rows in (("passwd", lines), ("group", groups)):
            (self.place / name).write_text("\n".join([*rows, ""]))
            (self.place / name).chmod(0o644)
        pass_through(self.place)

    def _seen_as(self, uid: int, groups: tuple[int, ...], words: list[str]) -> list[str]:
        own = [str(Path(prefix).resolve()) for prefix in (sys.base_prefix, sys.prefix)]
        view = [sys.executable, str(TREE / "tests" / "support" / "named_user.py"), str(self.place), str(uid)]
        view += [",".join(map(str, groups)), *own, str(TREE), "--", *words]
        return ["unshare", "--mount", "--propagation", "private", *view]

    def _environment(self, name: str) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "JPY_"))}
        home = str(self.place / name) if name in PEOPLE else str(self.place)
        return {**kept, "PATH": path, "PYTHONPATH": str(TREE), "HOME": home, "USER": name, SHARED_MARK: self.mark}

    def _answers(self) -> bool:
        try:
            return requests.get(f"{self.url}/hub/api/", timeout=30).ok
        except requests.ConnectionError:
            return False

    def wait(self, condition: Callable[[], Any], timeout_s: float) -> Any:
        """The first true value of a condition; fails with the Hub's log."""
        deadline = time.monotonic() + timeout_s
        while not (value := condition()):
            ended = self.process.poll()
            assert ended is None and time.monotonic() < deadline, f"not within {timeout_s:g} s ({ended}); {self.log()}"
            time.sleep(0.05)
        return value

    def log(self) -> str:
        """The newest lines of the Hub and of all servers."""
        return "\n".join((self.place / "hub.log").read_text().splitlines()[-60:])

    def run(self, name: str, *words: str) -> str:
        """The output of `jupyter hyperpod` as a person types it in a terminal."""
        command = [sys.executable, "-m", "jupyter_hyperpod", *words]
        found = subprocess.run(
            self._seen_as(PEOPLE[name], (PEOPLE[name],), command),
            cwd=self.place / name,
            env=self._environment(name),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert found.returncode == 0, (name, words, found.stdout, found.stderr)
        return found.stdout

    def store(self, name: str) -> Path:
        """A person's job store: nobody has named another place for it."""
        return self.place / name / ".local" / "state" / "jupyter_hyperpod"

    def cell(self, name: str, source: str) -> Path:
        """A file of a person's."""
        path = self.place / name / "cell.py"
        path.write_text(source)
        return path

    def processes(self, name: str) -> list[int]:
        """The processes of a person's server."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
                uid = path.stat().st_uid
            except OSError:
                continue
            if uid == PEOPLE[name] and any(word.endswith(b"jupyterhub-singleuser") for word in words):
                found.append(int(path.name))
        return found

    def end(self) -> None:
        """End every cluster and the Hub, with it the proxy and all servers; nothing may be left."""
        try:
            for name in PEOPLE:
                if self.store(name).exists():
                    self.run(name, "cluster", "stop")
        finally:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
            left = wait_until_gone(self.mark, 60, SHARED_MARK)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        assert not left, f"the Hub ended but these went on: {left}"


class Browser:
    """A person's browser: cookies, forms, and requests as JupyterLab makes them."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub, self.name, self.session = hub, name, requests.Session()
        self.session.get(f"{hub.url}/hub/login", timeout=30)
        form = {"username": name, "password": PASSWORD, "_xsrf": self.cookie("_xsrf", "/hub/")}
        answer = self.session.post(f"{hub.url}/hub/login?next=%2Fhub%2Ftoken", data=form, timeout=30)
        assert answer.status_code == 200 and answer.url.endswith("/hub/token"), answer.text[:2000]

    def cookie(self, name: str, path: str) -> str:
        """A cookie's value, "" where there is none for that path."""
        found = (cookie.value for cookie in self.session.cookies if (cookie.name, cookie.path) == (name, path))
        return next(found, "") or ""

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> requests.Response:
        """A request of a page below the same path, with its XSRF token."""
        base = next((base for base in self._bases() if path.startswith(base)), "/hub/")
        told = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin", "X-XSRFToken": self.cookie("_xsrf", base)}
        content = body if body is None or isinstance(body, bytes) else json.dumps(body)
        return self.session.request(method, self.hub.url + path, data=content, headers=told | headers, timeout=60)

    def _bases(self) -> list[str]:
        return [f"/user/{name}/{server}" for server in (f"{NAMED}/", "") for name in PEOPLE]

    def start(self, server: str = "") -> None:
        """Have the Hub start this person's server, or one with a name, and open it."""
        path = f"servers/{server}" if server else "server"
        answer = self.ask("POST", f"/hub/api/users/{self.name}/{path}")
        assert answer.status_code in (201, 202, 400), answer.text
        self.hub.wait(lambda: self.runs(server), 120)
        self.open(f"{self.name}/{server}".rstrip("/"))

    def runs(self, server: str = "") -> bool:
        """Whether the Hub says that this person's server is ready."""
        model = self.ask("GET", f"/hub/api/users/{self.name}").json()
        return bool(model["servers"].get(server, {}).get("ready"))

    def stop(self) -> None:
        """Have the Hub stop this person's server, as it does with an idle one."""
        assert self.ask("DELETE", f"/hub/api/users/{self.name}/server").status_code in (202, 204)
        self.hub.wait(lambda: not self.runs() and not self.hub.processes(self.name), 60)

    def lets_in(self, name: str, server: str = "") -> None:
        """Share this person's server with another, by the page's command: curl says that it sends a form."""
        token = self.ask("POST", f"/hub/api/users/{self.name}/tokens", {}).json()["token"]
        headers = {"Authorization": f"token {token}", "Content-Type": "application/x-www-form-urlencoded"}
        place, share = f"{self.hub.url}/hub/api/shares/{self.name}/{server}", json.dumps({"user": name})
        answer = requests.post(place, data=share, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text

    def shuts_out(self, name: str) -> None:
        """End that."""
        assert self.ask("PATCH", f"/hub/api/shares/{self.name}/", {"user": name}).status_code == 200

    def open(self, owner: str) -> int:
        """Open a person's server; say yes where the Hub asks whether to go on. Returns the status of the page."""
        return self.follow(f"/user/{owner}/lab").status_code

    def follow(self, path: str) -> requests.Response:
        """Follow a link to a server as `open` does."""
        answer = self.session.get(self.hub.url + path, timeout=60)
        if "/oauth2/authorize" in answer.url and answer.ok:
            fields = re.findall(r'<input[^>]*type="hidden"[^>]*name="(\w+)"[^>]*value="([^"]*)"', answer.text)
            data = [(name, unescape(value)) for name, value in fields]
            answer = self.session.post(answer.url, data=data, headers={"Referer": answer.url}, timeout=60)
        return answer

    def api(self, method: str, owner: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """A request to this extension on a person's server: status and JSON."""
        answer = self.ask(method, f"/user/{owner}/{ROOT}{path}", body, **headers)
        try:
            return answer.status_code, answer.json()
        except ValueError:
            return answer.status_code, answer.text

    @asynccontextmanager
    async def connected(self, owner: str, origin: str = "") -> AsyncIterator[Client]:
        """The websocket of a person's server, as the panel opens it: with cookies alone. ``origin``: another page."""
        url = f"{self.hub.url}/user/{owner}/{ROOT}/stream"
        prepared = self.session.prepare_request(requests.Request("GET", url))
        headers = {
            "Cookie": prepared.headers.get("Cookie", ""),
            "Origin": origin or self.hub.url,
            "Sec-Fetch-Mode": "websocket",
        }
        client = Client(await websocket_connect(HTTPRequest(url.replace("http", "ws", 1), headers=headers)))
        try:
            yield client
        finally:
            client.close()
            while await client.socket.read_message() is not None:
                pass


def listening(pid: int) -> list[str]:
    """The addresses at which a process listens, as the kernel writes them: hexadecimal, the address before the port."""
    own = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            own.add(os.readlink(fd))
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = row.split()
            if f"socket:[{words[9]}]" in own and words[2].endswith(":0000"):
                found.append(words[1])
    return found


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
