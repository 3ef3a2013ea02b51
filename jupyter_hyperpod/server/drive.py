"""Serves files of mounts through Jupyter's contents API, for JupyterLab's own client, and downloads."""

from __future__ import annotations

import json
import mimetypes

from jupyter_server.auth.decorator import authorized
from tornado import iostream, web

from .base import ApiHandler
from .contents import Model, MountContents
from .errors import RequestRefused
from .services import FILES

TYPES, FORMATS, BITS = {"directory", "file", "notebook"}, {"text", "base64"}, {"0", "1"}
HEAD_BYTES = 65_536  # the rest of a body around the content


class ContentsHandler(ApiHandler):
    """One file or directory, by the verbs of `MountContents`."""

    auth_resource = FILES

    @property
    def contents(self) -> MountContents:
        return self.services.contents

    def limit_bytes(self) -> int:
        """See ApiHandler: base64 adds a third."""
        return self.services.max_file_bytes * 4 // 3 + HEAD_BYTES

    def answer(self, model: Model, status: int = 200) -> None:
        """Answer with a model; times as ISO 8601."""
        self.set_status(status)
        self.finish(json.dumps(model, default=lambda value: value.isoformat()))

    def choice(self, name: str, known: set[str]) -> str | None:
        """A query argument that is one of a few; raises RequestRefused."""
        found = self.get_query_argument(name, None)
        if found is not None and found not in known:
            raise RequestRefused(400, f"{name} is {found[:80]!r}; expected one of {', '.join(sorted(known))}")
        return found

    @web.authenticated
    @authorized
    async def get(self, path: str) -> None:
        self.choice("hash", BITS)  # always sent by JupyterLab
        model = await self.contents.get(
            path,
            content=self.choice("content", BITS) != "0",
            type=self.choice("type", TYPES),
            format=self.choice("format", FORMATS),
            after=self._after(),
        )
        self.answer(model)

    def _after(self) -> str:
        """The unchanged argument: Tornado would strip blanks with which a name may begin."""
        return self.request.query_arguments.get("after", [b""])[-1].decode(errors="replace")

    @web.authenticated
    @authorized
    async def put(self, path: str) -> None:
        there = await self.contents.exists(path)
        self.answer(await self.contents.save(self.body("saveContents"), path), 200 if there else 201)

    @web.authenticated
    @authorized
    async def post(self, path: str) -> None:
        if await self.contents.file_exists(path):
            raise RequestRefused(400, f"{path} is a file; new ones are made in directories")
        body = {name: value for name, value in self.body("makeContents").items() if name != "path"}
        if source := body.pop("copy_from", ""):
            model = await self.contents.copy(source, path)
        else:
            model = await self.contents.new_untitled(path, **body)
        self.answer(model, 201)

    @web.authenticated
    @authorized
    async def patch(self, path: str) -> None:
        self.answer(await self.contents.update(self.body("renameContents"), path))

    @web.authenticated
    @authorized
    async def delete(self, path: str) -> None:
        await self.contents.delete(path)
        self.set_status(204)
        self.finish()


class DownloadHandler(ApiHandler):
    """Sends a file of any size, with headers that isolate its scripts from this site."""

    auth_resource = FILES

    @property
    def content_security_policy(self) -> str:
        return f"{super().content_security_policy}; sandbox allow-scripts"

    @web.authenticated
    @authorized
    async def get(self, path: str) -> None:
        self.check_xsrf_cookie()
        contents = self.services.contents
        content = await contents.open(path)
        kind = mimetypes.guess_type(content.item.name)[0] or "application/octet-stream"
        self.set_header("Content-Type", kind)
        self.set_header("Content-Length", content.item.bytes)
        self.set_header("X-Content-Type-Options", "nosniff")
        if self.get_query_argument("download", ""):
            self.set_attachment_header(content.item.name)
        try:
            while (block := await contents.next_block(path, content)) is not None:
                self.write(block)
                await self.flush()
        except iostream.StreamClosedError:  # the client has gone
            return
        finally:
            await contents.end(content)
        self.finish(set_content_type=kind)
