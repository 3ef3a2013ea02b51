"""Who may do what on a person's server of JupyterHub: its owner everything, others what the Hub's custom scopes say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from jupyter_core.utils import ensure_async
from jupyter_server.auth import Authorizer, User
from tornado import web

from .services import CLUSTER, FAULTS, JOBS, SETTINGS

READ, OPERATE = "custom:jupyter_hyperpod:read", "custom:jupyter_hyperpod:operate"
# the two rights of `jupyter hyperpod share`; `api` is the server's version and state, and JupyterLab's page
ALLOWED = {
    READ: {("read", kind) for kind in (JOBS, CLUSTER, SETTINGS, "api")},
    OPERATE: {("write", JOBS), ("write", FAULTS)},
}
PAGES = ("jupyter_server", "jupyterlab", "jupyterlab_server", "jupyterhub")
# what JupyterLab's page starts without: the names of the owner's files, and what is installed
NOT_THE_PAGE = ("jupyterlab_server.workspaces_handler", "jupyterlab.handlers.extension_manager_handler")


class HubScopesAuthorizer(Authorizer):
    """An authorizer for servers of JupyterHub, to be named in ``ServerApp.authorizer_class``.

    The owner of the server may do everything. Anybody else whom the Hub lets in needs one of the custom scopes that
    `sufficient` names, for this server or for all servers of its owner. Nobody is authorized where the Hub does not say
    who asks.
    """

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        self._provider = cast(Any, self.identity_provider)
        identify = self._provider.get_user

        async def get_user(handler: Any) -> User | None:
            user: User | None = await ensure_async(identify(handler))
            if user is not None and not self.admits(handler, user):
                raise web.HTTPError(403, "Only the owner of this server is authorized to do this.")
            return user

        # JupyterLab's handlers of settings, workspaces and extensions ask no authorizer
        self._provider.get_user = get_user

    def is_authorized(self, handler: Any, user: User, action: str, resource: str) -> bool:
        """Whether the person may do it; never raises."""
        hub_user = getattr(user, "hub_user", None)
        owner, server = os.environ.get("JUPYTERHUB_USER", ""), os.environ.get("JUPYTERHUB_SERVER_NAME", "")
        if not isinstance(hub_user, Mapping) or not owner:
            return False
        if (hub_user.get("kind"), hub_user.get("name")) == ("user", owner):
            return True
        places = (f"user={owner}", f"server={owner}/{server}")
        scopes = {f"{scope}!{place}" for scope in sufficient(action, resource) for place in places}
        return bool(self._provider.hub_auth.check_scopes(scopes, hub_user))

    def admits(self, handler: Any, user: User) -> bool:
        """Whether the person may use a handler: one that names a resource asks the authorizer itself."""
        if hasattr(handler, "auth_resource"):
            return True
        module = type(handler).__module__
        page = module.partition(".")[0] in PAGES and module not in NOT_THE_PAGE
        reads = handler.request.method in ("GET", "HEAD", "OPTIONS") and "Upgrade" not in handler.request.headers
        return self.is_authorized(handler, user, "read" if reads else "write", "api" if page else "unnamed")


def sufficient(action: str, resource: str) -> set[str]:
    """The custom scopes of JupyterHub of which one is enough for an action on a resource of a Jupyter server."""
    ours = {scope for scope, allowed in ALLOWED.items() if (action, resource) in allowed}
    return ours | {f"custom:jupyter_server:{action}:{resource.replace('.', ':')}", f"custom:jupyter_server:{action}:*"}
