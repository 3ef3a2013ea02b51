"""Reads objects in S3 and compatible stores: botocore finds credentials and signs, our own HTTP client reads.

The signature covers neither range nor condition, so one signature serves all ranges of an object for minutes.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote

from ...core.errors import HyperpodError, LoaderError, SpecError
from .http import HttpSource
from .http_connection import Head
from .mount_source import variables_of
from .source import LoadResources, Options

SIGNATURE_S = 240.0  # a signature is accepted for 15 minutes
EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
DEFAULT_REGION = "us-east-1"
_CODE = re.compile(rb"<Code>([^<]{1,100})</Code>")
_REGION = re.compile(rb"<Region>([^<]{1,100})</Region>")
_EXPECTED_REGION = re.compile(rb"expecting '([^']{1,100})'")


class Account:
    """Credentials, region and endpoint; one per load. Thread-safe.

    Values of `variables` take precedence over the environment. `generation` counts credentials.
    """

    def __init__(self, options: Options, variables: Callable[[], Mapping[str, str]] = dict) -> None:
        self._lock = threading.Lock()
        self._ca_file = options.ca_file
        self._variables = variables
        self._own = variables()
        self.generation = 0
        with _explained():
            named = options.region or self._named("AWS_REGION", "AWS_DEFAULT_REGION")
            self.region: str = named or self._session.get_config_variable("region") or DEFAULT_REGION
            named = options.endpoint_url or self._named("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
            self.endpoint: str | None = named or self._profile().get("endpoint_url")
            self._credentials: Any = None if options.anonymous else self._find()
        if self._credentials is None and not options.anonymous:
            raise SpecError("no AWS credentials were found: set AWS_ACCESS_KEY_ID or a profile, or say anonymous=True")

    @cached_property
    def _session(self) -> Any:
        """Read the AWS configuration, only where the environment is not sufficient."""
        from botocore.session import Session

        return Session(profile=self._own.get("AWS_PROFILE"))

    @cached_property
    def ca_file(self) -> str | None:
        """The trusted certificates, None for the system's."""
        named = self._ca_file or self._named("AWS_CA_BUNDLE")
        with _explained():
            found: str | None = named or self._session.get_config_variable("ca_bundle") or None
        return found

    def locate(self, bucket: str, key: str) -> str:
        """Return the object's URL: path style at a custom endpoint, else the bucket's host at AWS."""
        path = quote(key, safe="/~-._")
        if self.endpoint:
            return f"{self.endpoint.rstrip('/')}/{bucket}/{path}"
        host = f"s3.{self.region}.amazonaws.com" + (".cn" if self.region.startswith("cn-") else "")
        return f"https://{host}/{bucket}/{path}" if "." in bucket else f"https://{bucket}.{host}/{path}"

    def sign(self, method: str, url: str, payload: str = EMPTY_SHA256) -> dict[str, str]:
        """Return the fields of a signed request, but for the host. `payload` is the SHA-256 of its body.

        Raises LoaderError where the key has expired and cannot be renewed.
        """
        if self._credentials is None:
            return {}
        from botocore.awsrequest import AWSRequest

        request = AWSRequest(method, url)
        with self._lock:
            with _explained():
                key = self._credentials.get_frozen_credentials()
            _signer(key, self.region, payload).add_auth(request)
        return {name: value for name, value in request.headers.items() if name.lower() != "host"}

    def renew(self, generation: int) -> bool:
        """Replace the expired credentials of a generation; False where there are no others."""
        with self._lock:
            if self._credentials is None or generation != self.generation:
                return self._credentials is not None
            self.__dict__.pop("_session", None)  # botocore's session keeps the credentials that it has found
            try:
                self._own = self._variables()
                with _explained():
                    found = self._find()
                    if found is None or found.get_frozen_credentials() == self._credentials.get_frozen_credentials():
                        return False
            except HyperpodError:  # the file is being written
                return False
            self._credentials = found
            self.generation += 1
            return True

    def _find(self) -> Any:
        return _environment_credentials(self._own) or self._session.get_credentials()

    def _named(self, *variables: str) -> str | None:
        return next((value for name in variables if (value := self._own.get(name) or os.environ.get(name))), None)

    def _profile(self) -> dict[str, Any]:
        if (self._session.profile or "default") not in self._session.full_config["profiles"]:
            return {}
        found: dict[str, Any] = self._session.get_scoped_config()
        return found


def _environment_credentials(own: Mapping[str, str]) -> Any:
    """Return a mount's own keys, or those of the environment, which botocore prefers, too.

    None where botocore has to search further, as for a mount's own profile.
    """
    from botocore.credentials import Credentials

    given = own if own.get("AWS_ACCESS_KEY_ID") or own.get("AWS_PROFILE") else os.environ
    access, secret = given.get("AWS_ACCESS_KEY_ID"), given.get("AWS_SECRET_ACCESS_KEY")
    if not access or not secret or given.get("AWS_CREDENTIAL_EXPIRATION"):
        return None
    return Credentials(access, secret, given.get("AWS_SESSION_TOKEN") or given.get("AWS_SECURITY_TOKEN"), method="env")


@contextmanager
def _explained() -> Iterator[None]:
    """Turn every error of botocore into a LoaderError with a remedy."""
    try:
        yield
    except HyperpodError:
        raise
    except ModuleNotFoundError:
        raise SpecError("s3:// needs botocore: pip install 'jupyter_hyperpod[load]'") from None
    except Exception as error:  # botocore has two base classes, and files and processes that it reads raise others
        found = f"none ({type(error).__name__}: {str(error).rstrip('.')})"
        remedy = "look at AWS_PROFILE and ~/.aws, or log in again, as with aws sso login"
        raise LoaderError("AWS credentials", found, "a key that is valid", remedy) from None


def _signer(credentials: Any, region: str, payload: str) -> Any:
    from botocore.auth import S3SigV4Auth

    class Signer(S3SigV4Auth):  # type: ignore[misc]
        def payload(self, request: Any) -> str:
            return payload

    return Signer(credentials, "s3", region)


def signing() -> None:
    """Import the signing code, so that forked processes need not."""
    with suppress(ModuleNotFoundError):
        import botocore.auth
        import botocore.awsrequest
        import botocore.credentials  # noqa: F401


def split(url: str) -> tuple[str, str]:
    """Return bucket and key of ``s3://bucket/key``. Raises SpecError."""
    bucket, _, key = url.removeprefix("s3://").partition("/")
    if not bucket or not key:
        raise SpecError(f"{url!r} is not s3://bucket/key")
    return bucket, key


def account_of(resources: LoadResources, url: str) -> Account:
    """Return the account that the objects of one load share: one per mount, and one for all others."""
    spec = resources.shared.bucket(url)
    named = "" if spec is None else spec.name
    account: Account = resources.once(
        ("account", named), lambda: Account(resources.options, lambda: variables_of(url, spec))
    )
    return account


@dataclass(frozen=True, eq=False, slots=True)
class _Signature:
    """Fields of a signed request, its time and its generation of credentials. `anew`: the previous one was refused."""

    fields: dict[str, str]
    signed_s: float
    generation: int
    anew: bool

    @property
    def is_old(self) -> bool:
        """True if it is too old, by the wall clock, which also runs while a laptop sleeps."""
        return not 0 <= time.time() - self.signed_s < SIGNATURE_S


class S3Source(HttpSource):
    """An object in a bucket, ``s3://bucket/key``."""

    signed = True

    def __init__(self, url: str, resources: LoadResources) -> None:
        bucket, key = split(url)
        self._account = account_of(resources, url)
        self._signature: _Signature | None = None
        self._used = threading.local()
        super().__init__(self._account.locate(bucket, key), resources, name=url)

    def headers(self) -> dict[str, str]:
        signature = self._signature
        if signature is None or signature.generation != self._account.generation or signature.is_old:
            signature = self._sign()
        self._used.signature = signature
        return signature.fields

    def _sign(self, anew: bool = False) -> _Signature:
        generation = self._account.generation  # read before signing: a newer generation then leads to another signature
        fields = self._account.sign("GET", self._url)
        self._signature = signature = _Signature(fields, time.time(), generation, anew)
        return signature

    def trusted(self) -> str | None:
        return self._account.ca_file

    def refuse(self, head: Head, body: bytes) -> LoaderError | None:
        """Names the region, the code and what to do."""
        used: _Signature = self._used.signature
        if has_expired(body) and self._account.renew(used.generation):
            return None
        if _code(body) == "RequestTimeTooSkewed":
            if used is not self._signature:  # another connection has renewed the signature meanwhile
                return None
            if not used.anew:
                self._sign(anew=True)
                return None
        wanted = "a readable object" if head.status in (401, 403) else "an object"
        return refusal(self._account, self.name, head, body, wanted)


def refusal(account: Account, name: str, head: Head, body: bytes, wanted: str) -> LoaderError | None:
    """Return the error that an answer about `name` means, None where a retry may help."""
    code = _code(body)
    status = f"{code or 'no code'} (status {head.status})"
    if (region := _other_region(account, head, body, code)) is not None:
        expected = f"it in {account.region}"
        return LoaderError(name, f"the bucket in region {region}", expected, f"set AWS_REGION={region}")
    if code in ("SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable"):
        return None
    if head.status in (401, 403):
        return LoaderError(name, f"no permission: {status}", wanted, "check keys and policy")
    return LoaderError(name, f"nothing: {status}" if head.status == 404 else status, wanted)


def has_expired(body: bytes) -> bool:
    """True if an answer says that credentials were valid once, or were replaced."""
    return _code(body) in ("ExpiredToken", "TokenRefreshRequired", "InvalidAccessKeyId")


def _code(body: bytes) -> str:
    match = _CODE.search(body)
    return match[1].decode("latin-1") if match else ""


def _other_region(account: Account, head: Head, body: bytes, code: str) -> str | None:
    named = head.fields.get("x-amz-bucket-region")
    for pattern in (_EXPECTED_REGION, _REGION):
        if not named and (match := pattern.search(body)):
            named = match[1].decode("latin-1")
    moved = head.status in (301, 307) or code in ("PermanentRedirect", "AuthorizationHeaderMalformed")
    if not moved and head.status != 400:
        return None
    return named if named and named != account.region else ("another one" if moved else None)
