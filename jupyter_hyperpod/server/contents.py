"""A Jupyter contents manager for mounts: the first part of a path names the mount, the rest is a path in it.

Jupyter Server's own contents manager, the base class, has the rules for new names, copies and trusted notebooks. All
access to mounts happens in threads and with a time limit (`mounts.files`).
"""

from __future__ import annotations

import asyncio
import base64
import mimetypes
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import nbformat
from jupyter_server.services.contents.checkpoints import AsyncCheckpoints
from jupyter_server.services.contents.manager import AsyncContentsManager

from ..core.errors import Denied, HyperpodError, SpecError, UserError
from ..core.units import format_bytes
from ..storage.store import Store
from .errors import refusal
from .uploads import Uploads

if TYPE_CHECKING:
    from ..mounts.files import FileBlocks, Item, MountFiles

AT_ONCE = 3  # per mount
UNKNOWN = ""  # instead of a time; the epoch would look like one
Result = TypeVar("Result")
Model = dict[str, Any]


class NoCheckpoints(AsyncCheckpoints):
    """No checkpoints: files of mounts have none, but Jupyter requires the class."""

    async def create_checkpoint(self, contents_mgr: object, path: str) -> Model:
        return {"id": "none", "last_modified": datetime.now(UTC)}

    async def list_checkpoints(self, path: str) -> list[Model]:
        return []


class MountContents(AsyncContentsManager):
    """Files of all mounts. Raises `errors.RequestRefused`. Files above `limit_bytes` are not opened, only downloaded.

    Deleted files are treated as by `own`, the manager of the server's own files: moved to a trash or removed.
    JupyterLab announces the same for all drives before it deletes.
    """

    def __init__(self, store: Store, threads: Executor, limit_bytes: int, own: Any, **traits: Any) -> None:
        super().__init__(checkpoints_class=NoCheckpoints, notary=own.notary, **traits)
        self._store, self._threads, self._limit_bytes = store, threads, limit_bytes
        self._uploads = Uploads(store)
        self._room: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._trash = bool(getattr(own, "delete_to_trash", False))

    # ---- what Jupyter's base class asks for -----------------------------------------------------------------------

    async def dir_exists(self, path: str) -> bool:
        return not path.strip("/") or await self._kind(path) == "directory"

    async def file_exists(self, path: str = "") -> bool:
        return bool(path.strip("/")) and await self._kind(path) == "file"

    async def exists(self, path: str) -> bool:
        """Ask once, where the base class asks for a file and then for a directory."""
        return not path.strip("/") or await self._kind(path) in ("file", "directory")

    async def is_hidden(self, path: str) -> bool:
        return _is_hidden(path)

    async def get(
        self,
        path: str,
        content: bool = True,
        type: str | None = None,
        format: str | None = None,
        require_hash: bool = False,
        after: str = "",
    ) -> Model:
        """Return a model; of a directory only the entries behind `after`, with `next` if there are more."""
        path = path.strip("/")
        self._refuse_hidden(path)
        model = await self._do(path, self._read, path, content, type, format, after)
        if model["type"] == "notebook" and content:
            self.mark_trusted_cells(model["content"], path)
            self.validate_notebook_model(model)
        return model

    async def save(self, model: Model, path: str = "") -> Model:
        """Write a file, a notebook, a part of an upload, or make a directory; returns its model without content."""
        path = path.strip("/")
        self._refuse_hidden(path)
        kind = model.get("type", "file")
        if kind == "directory":
            await self._do(path, self._make, path)
        else:
            if model.get("content") is None and await self.file_exists(path):
                raise refusal(SpecError(f"{path} is there, and what is to be in it is not said"))
            self.run_pre_save_hooks(model=model, path=path)
            if kind == "notebook":
                notebook = _notebook(model.get("content"))
                self.check_and_sign(notebook, path)
                content = f"{nbformat.writes(notebook)}\n".encode()
            else:
                content = _decoded(model.get("content") or "", model.get("format") or "text")
            if not await self._do(path, self._take, path, content, model.get("chunk")):
                return _model(path, _item(_name(path), "file", len(content)))
        return await self.get(path, content=False)

    async def delete_file(self, path: str) -> None:
        self._refuse_hidden(path)
        await self._do(path, self._delete, path)

    async def rename_file(self, old_path: str, new_path: str) -> None:
        self._refuse_hidden(old_path)
        self._refuse_hidden(new_path)
        await self._do(old_path, self._move, old_path, new_path)

    # ---- beyond it -----------------------------------------------------------------------------------------------

    async def open(self, path: str) -> FileBlocks:
        """Open a file; read it with `next_block` and close it with `end`."""
        self._refuse_hidden(path)

        def begin() -> FileBlocks:
            place, inside = self._at(path)
            return place.content(inside)

        return await self._do(path, begin)

    async def next_block(self, path: str, content: FileBlocks) -> bytes | None:
        """Take one block; None at the end."""
        return await self._do(path, next, content, None)

    async def end(self, content: FileBlocks) -> None:
        try:
            with suppress(RuntimeError):  # the threads have ended, because the server is ending
                await asyncio.get_running_loop().run_in_executor(self._threads, content.close)
        finally:
            content.close()  # a second call does nothing

    # ---- away from the event loop --------------------------------------------------------------------------------

    async def _do(self, path: str, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function on a file in a thread. The limit per mount leaves threads to other mounts while one hangs."""
        mount = path.strip("/").partition("/")[0]
        try:
            room = self._room.setdefault(mount, asyncio.Semaphore(AT_ONCE))
            async with room:
                return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        except (HyperpodError, OSError, ValueError) as error:
            raise refusal(SpecError(str(error)) if isinstance(error, ValueError) else error) from error

    async def _kind(self, path: str) -> str:
        def look() -> str:
            with suppress(UserError):  # missing, or not visible
                place, inside = self._at(path)
                return place.look(inside).kind
            return "nothing"

        return await self._do(path, look)

    def _at(self, path: str, changed: bool = False) -> tuple[MountFiles, str]:
        from ..mounts import files  # in its thread: the start of a server does not wait for it

        name, _, inside = path.strip("/").partition("/")
        if changed and not inside:
            raise Denied("mounts are made and removed with `jupyter hyperpod mount`; files belong into one of them")
        return files.mount_files(self._store, name), inside

    def _read(self, path: str, content: bool, kind: str | None, format: str | None, after: str) -> Model:
        if not path:
            return self._mounts(content)
        place, inside = self._at(path)
        item = place.look(inside)
        if item.kind == "directory":
            if kind not in (None, "directory"):
                raise SpecError(f"{path} is a directory, no {kind}")
            model = _model(path, item)
            if content:
                entries, following = place.page(inside, after)
                shown = [one for one in entries if self.should_list(one.name) and one.kind != "other"]
                shown = [one for one in shown if self.allow_hidden or not one.name.startswith(".")]
                model |= {"format": "json", "content": [_model(f"{path}/{one.name}", one) for one in shown]}
                model |= {"next": following}
            return model
        if item.kind != "file" or kind == "directory":
            raise SpecError(f"{path} is no {kind or 'file'} but a {item.kind}")
        if not content:
            return _model(path, item, kind)
        item, whole = self._whole(place, inside)
        model = _model(path, item, kind)
        return model | _content(model["type"], format, whole, model["mimetype"])

    def _mounts(self, content: bool) -> Model:
        from ..mounts import table

        root = _model("", _item("", "directory", writable=False))
        if content:
            known = table.table(self._store).values()
            found = [_model(spec.name, _item(spec.name, "directory", writable=not spec.read_only)) for spec in known]
            root |= {"format": "json", "content": found, "next": None}
        return root

    def _whole(self, place: MountFiles, inside: str) -> tuple[Item, bytes]:
        with closing(place.content(inside)) as content:
            item = content.item
            if item.bytes > self._limit_bytes:
                raise SpecError(
                    f"{item.name} has {format_bytes(item.bytes)}, and the browser opens files of at most "
                    f"{format_bytes(self._limit_bytes)}: download it, or read it in a cell"
                )
            return item, b"".join(content)

    def _make(self, path: str) -> None:
        place, inside = self._at(path, changed=True)
        place.make(inside)

    def _delete(self, path: str) -> None:
        place, inside = self._at(path, changed=True)
        (place.discard if self._trash else place.remove)(inside)

    def _move(self, old: str, new: str) -> None:
        place, inside = self._at(old, changed=True)
        mount, _, goal = new.strip("/").partition("/")
        if old.strip("/").partition("/")[0] != mount or not goal:
            raise SpecError("files move inside of a mount; between mounts copy them: `jupyter hyperpod cp`")
        place.move(inside, goal)

    def _take(self, path: str, content: bytes, chunk: int | None) -> bool:
        """Take a file's content or a part of it (`Uploads`); True when the file is complete."""
        place, inside = self._at(path, changed=True)
        with self._uploads.take(path, content, chunk) as whole:
            if whole is not None:
                place.put(inside, whole)
            return whole is not None

    def _refuse_hidden(self, path: str) -> None:
        if _is_hidden(path) and not self.allow_hidden:
            raise refusal(SpecError(f"{path} is a hidden name, which this server does not allow"))


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.strip("/").split("/"))


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _item(name: str, kind: str, size: int = 0, writable: bool = True) -> Item:
    """A file or a directory whose time is not known."""
    from ..mounts.files import Item

    return Item(name, kind, size, 0, writable)


def _model(path: str, item: Item, kind: str | None = None) -> Model:
    """A model of the contents API, without content. Its hash identifies one state of the file."""
    changed = datetime.fromtimestamp(item.changed_ns / 1e9, UTC) if item.changed_ns > 0 else UNKNOWN
    found = "directory" if item.kind == "directory" else kind or ("notebook" if path.endswith(".ipynb") else "file")
    model = {
        "name": _name(path),
        "path": path,
        "type": found,
        "created": changed,
        "last_modified": changed,
        "writable": item.writable,
        "size": None if found == "directory" else item.bytes,
        "mimetype": mimetypes.guess_type(path)[0] if found == "file" else None,
        "content": None,
        "format": None,
    }
    if found != "directory":
        model |= {"hash": f"{item.bytes}-{item.changed_ns}", "hash_algorithm": "size and time of the last change"}
    return model


def _content(kind: str, format: str | None, content: bytes, mimetype: str | None) -> Model:
    """The fields of a model that hold its content. Raises SpecError for another format."""
    if kind == "notebook":
        try:
            return {"format": "json", "content": nbformat.reads(content.decode(), as_version=4)}
        except Exception as error:  # nbformat passes on the errors of its parsers
            raise SpecError(f"it is no notebook: {str(error)[:300]}") from error
    if format != "base64":
        try:
            return {"format": "text", "content": content.decode(), "mimetype": mimetype or "text/plain"}
        except UnicodeDecodeError as error:
            if format == "text":
                raise SpecError("it is not UTF-8 text") from error
    binary = {"format": "base64", "content": base64.encodebytes(content).decode()}
    return binary | {"mimetype": mimetype or "application/octet-stream"}


def _notebook(content: Any) -> Any:
    wanted = {"nbformat": int, "nbformat_minor": int, "metadata": dict, "cells": list}
    if not isinstance(content, dict) or not all(isinstance(content.get(name), kind) for name, kind in wanted.items()):
        raise refusal(SpecError(f"the content is no notebook of version 4, which has {', '.join(wanted)}"))
    return nbformat.from_dict(content)


def _decoded(content: Any, format: str) -> bytes:
    if not isinstance(content, str) or format not in ("text", "base64"):
        raise refusal(SpecError(f"content of format {format!r}; expected text or base64"))
    try:
        return content.encode() if format == "text" else base64.b64decode(content, validate=False)
    except ValueError as error:
        raise refusal(SpecError(f"the content is no {format}: {error}")) from error
