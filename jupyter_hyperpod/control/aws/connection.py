"""Requests to AWS: the region, bounds on time and tries, and what went wrong, in plain words.

Imported on use: boto3 belongs to the extra `aws`. No text of AWS that could hold a credential is shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol

import boto3
from botocore import exceptions as errors
from botocore.config import Config
from botocore.session import Session

from ...core.errors import ClusterError, Denied, HyperpodError, NotFound
from ...core.options import near_matches

CONNECT_S, READ_S, TRIES = 5.0, 20.0, 3
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}
THROTTLED = {"Throttling", "ThrottlingException", "TooManyRequestsException", "RequestLimitExceeded"}
UNSIGNED = {"SignatureDoesNotMatch", "InvalidSignatureException", "IncompleteSignature"}
UNKNOWN = {"UnrecognizedClientException", "InvalidClientTokenId", "InvalidAccessKeyId", "AuthFailure"}
LOG_IN = "log in again (`aws sso login`, or fetch new temporary credentials), then repeat this"
NO_REGION = "no region of AWS is known: give --region, set AWS_REGION, or write it to ~/.aws/config"
# LoginError is newer than the oldest botocore that will do
_LOGINS = ("SSOError", "LoginError", "TokenRetrievalError", "NoAuthTokenError", "CredentialRetrievalError")
LOGINS = tuple(getattr(errors, name) for name in _LOGINS if hasattr(errors, name))
UNREACHABLE = (errors.HTTPClientError, errors.ConnectionError)


class Pages(Protocol):
    """The pages of a list, by their NextToken."""

    def paginate(self, **arguments: Any) -> Iterator[Mapping[str, Any]]: ...


class SageMaker(Protocol):
    """What is asked of SageMaker."""

    def get_paginator(self, name: str) -> Pages: ...

    def describe_cluster(self, *, ClusterName: str) -> Mapping[str, Any]: ...

    def describe_cluster_node(self, *, ClusterName: str, NodeId: str) -> Mapping[str, Any]: ...


class Eks(Protocol):
    """What is asked of EKS."""

    def describe_cluster(self, *, name: str) -> Mapping[str, Any]: ...


class Aws:
    """AWS in one region, as whoever the environment or ``~/.aws`` says."""

    def __init__(self, region: str = "") -> None:
        """Raises ClusterError where there is no region, or no such profile. Asks nothing yet."""
        region = region or os.environ.get("AWS_REGION", "")  # which AWS's other tools read, and boto3 does not
        with asking("", region):
            self._session = boto3.Session(region_name=region or None)
        self.region: str = self._session.region_name or ""
        if not self.region:
            raise ClusterError(NO_REGION)

    @cached_property
    def sagemaker(self) -> SageMaker:
        client: SageMaker = self._client("sagemaker", self.region)
        return client

    def eks(self, region: str) -> Eks:
        """EKS in the region of a cluster's ARN."""
        client: Eks = self._client("eks", region)
        return client

    def _client(self, service: str, region: str) -> Any:
        with asking("", region):
            return self._session.client(
                service,
                region_name=region,
                config=Config(
                    connect_timeout=CONNECT_S,
                    read_timeout=READ_S,
                    retries={"total_max_attempts": TRIES, "mode": "standard"},
                ),
            )


@contextmanager
def asking(action: str, region: str) -> Iterator[None]:
    """Turn errors of AWS into ours. ``action``: the IAM action that is used, such as ``sagemaker:ListClusters``."""
    try:
        yield
    except errors.ClientError as error:
        raise _refused(error, action, region) from None
    except (errors.BotoCoreError, errors.HTTPClientError) as error:
        raise _failed(error, region) from None


def _refused(error: Any, action: str, region: str) -> HyperpodError:
    """What an answer of AWS that is an error means. Signatures and their texts hold credentials: they are not shown."""
    told = error.response.get("Error", {})
    code, said = str(told.get("Code", "")).rpartition("#")[2], str(told.get("Message", ""))
    if code in EXPIRED:
        return ClusterError(f"the credentials for AWS have expired: {LOG_IN}")
    if code in DENIED:
        who = re.search(r"User: (\S+) is not", said)
        whom = who[1] if who else "these credentials"
        return Denied(f"AWS does not let {whom} do {action}: ask who runs the account for this action in IAM")
    if code in UNKNOWN:
        return ClusterError(
            f"AWS does not know the credentials in {region}: `aws sts get-caller-identity` says whose they are; log in "
            "again, or let the account have this region"
        )
    if code in UNSIGNED or "Canonical String" in said:
        return ClusterError("AWS refuses the signature: the secret key is wrong, or this machine's clock is")
    if code in THROTTLED:
        return ClusterError(f"AWS has had too many requests of this account, after {TRIES} tries: wait a minute")
    absent = re.search(r"not find|not found|does not exist|No cluster found", said, re.I)
    if code.startswith("ResourceNotFound") or (code == "ValidationException" and absent):
        return NotFound("AWS has no such cluster")
    shown = " ".join(said.split())[:300]
    return ClusterError(f"AWS refuses {action} in {region}: {code or 'no code'}" + (f": {shown}" if shown else ""))


def _failed(error: Exception, region: str) -> HyperpodError:
    """What kept a request from being answered. Texts of programs that make credentials are not shown."""
    if isinstance(error, errors.NoRegionError):
        return ClusterError(NO_REGION)
    if isinstance(error, errors.NoCredentialsError):
        return ClusterError("no credentials for AWS are known: log in with `aws configure sso`, or set AWS_PROFILE")
    if isinstance(error, errors.PartialCredentialsError):
        return ClusterError("the credentials for AWS are incomplete: the key and its secret belong together")
    if isinstance(error, errors.ProfileNotFound):
        name = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or ""
        near = near_matches(name, _profiles())
        return ClusterError(f"~/.aws/config has no profile {name[:80]!r}{near}: set AWS_PROFILE to one that is there")
    if isinstance(error, LOGINS):
        return ClusterError(f"there are no credentials for AWS any more ({type(error).__name__}): {LOG_IN}")
    if isinstance(error, errors.InvalidRegionError):
        return ClusterError(f"{region[:80]!r} is no region of AWS; expected one such as us-west-2")
    if isinstance(error, errors.SSLError):
        return ClusterError(
            f"AWS's certificate in {region} is not trusted: where a proxy shows its own, set AWS_CA_BUNDLE"
        )
    if isinstance(error, UNREACHABLE):
        near = "" if region in (known := _regions()) else near_matches(region, known)
        return ClusterError(
            f"AWS does not answer in {region}{near}, after {TRIES} tries of at most {READ_S:g} s: look at the region, "
            "at the network and at HTTPS_PROXY"
        )
    return ClusterError(f"AWS cannot be asked: {type(error).__name__}; `aws sts get-caller-identity` may say more")


def _regions() -> list[str]:
    return list(boto3.Session().get_available_regions("sagemaker"))


def _profiles() -> list[str]:
    return list(Session().full_config.get("profiles", {}))
