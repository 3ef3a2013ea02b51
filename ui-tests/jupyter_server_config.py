"""A Jupyter server for the browser tests: on loopback, of one test run, without a token."""

import os

from jupyterlab.galata import configure_jupyter_server

c = get_config()  # type: ignore[name-defined]  # noqa: F821
configure_jupyter_server(c)
c.ServerApp.ip = "127.0.0.1"
c.ServerApp.port = int(os.environ["HYPERPOD_UI_PORT"])
c.ServerApp.log_level = "WARN"
c.ServerApp.jpserver_extensions = {"jupyter_hyperpod": True}
