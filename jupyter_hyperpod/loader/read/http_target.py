"""The target of HTTP connections: scheme, host, port, certificates, and the environment's proxy."""

from __future__ import annotations

import base64
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

_RESERVED = "%:/?#[]@!$&'()*+,;="  # a percent sign means that the text is quoted already


@dataclass(frozen=True)
class Proxy:
    """A proxy, and the credentials sent to it."""

    host: str
    port: int
    fields: dict[str, str] = field(default_factory=dict, repr=False, hash=False)


@dataclass(frozen=True)
class Target:
    """Where connections go: scheme, host, port, and the proxy if there is one."""

    scheme: str
    host: str
    port: int
    timeout_s: float
    tls: ssl.SSLContext | None = field(default=None, compare=False)
    proxy: Proxy | None = None

    @property
    def address(self) -> str:
        """Host and port, as a proxy is told them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def authority(self) -> str:
        """As in the Host field."""
        usual = self.port == {"http": 80, "https": 443}[self.scheme]
        return self.address.rpartition(":")[0] if usual else self.address

    @property
    def request_prefix(self) -> str:
        """The text before the path in a request line: the whole origin, where a proxy needs it."""
        return f"http://{self.authority}" if self.proxy and self.scheme == "http" else ""

    @property
    def proxy_fields(self) -> dict[str, str]:
        """The credentials for the proxy, as fields of each request that the proxy reads."""
        return self.proxy.fields if self.proxy and self.scheme == "http" else {}


def find_proxy(scheme: str, host: str) -> Proxy | None:
    """Return the proxy that the environment names for `host`, None for none. Raises ValueError for another text."""
    named = None if proxy_bypass(host) else getproxies().get(scheme)
    if not named:
        return None
    with suppress(ValueError):  # the original error may show a part of the password
        parts = urlsplit(named if "://" in named else f"http://{named}")
        if parts.hostname and parts.scheme in ("http", "https"):
            return Proxy(parts.hostname, parts.port or 80, _credentials(parts.username, parts.password))
    raise ValueError(f"the proxy that {scheme}_proxy names is not http://host:port")


def _credentials(user: str | None, password: str | None) -> dict[str, str]:
    if user is None:
        return {}
    plain = f"{unquote(user)}:{unquote(password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(plain).decode()}"}


def target_of(url: str, timeout_s: float, ca_file: str | None) -> tuple[Target, str]:
    """Return the target and the request path of an http(s) URL. Raises ValueError for another text."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("that is not an http or https URL")
    tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
    port = parts.port or (443 if tls else 80)
    proxy = find_proxy(parts.scheme, parts.hostname)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, unquote(parts.hostname), port, timeout_s, tls, proxy), quoted(path)


def quoted(url: str, encoding: str = "utf-8") -> str:
    """Return a URL, or a part of one, with all forbidden characters quoted."""
    return quote(url, _RESERVED, encoding)
