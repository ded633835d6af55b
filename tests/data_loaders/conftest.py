"""Shared fixtures: the folder of real files, a world without it, and a small web server."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from data_loaders.catalogue import lookup

NO_FILES = "ZOO_DATA is not set: there are no real files to test against"


@pytest.fixture
def mirror() -> Path:
    """The folder of real files; the test is skipped where there is none."""
    named = os.environ.get("ZOO_DATA")
    if not named:
        pytest.skip(NO_FILES)
    return Path(named)


@pytest.fixture
def stored(mirror: Path) -> Callable[[str], dict[str, np.ndarray]]:
    """Reads the file of a set straight, without the code under test."""

    def read(name: str) -> dict[str, np.ndarray]:
        with np.load(mirror / lookup.entry(name).file, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}

    return read


@pytest.fixture
def no_mirror(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No ZOO_DATA, and an empty cache of the test's own, which is returned."""
    monkeypatch.delenv("ZOO_DATA", raising=False)
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def change_entry(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces facts of one set for the length of a test."""

    def change(name: str, **facts: object) -> None:
        altered = dataclasses.replace(lookup.entry(name), **facts)
        monkeypatch.setattr(lookup, "ENTRIES", {**lookup.ENTRIES, name: altered})

    return change


class Server:
    """A web server on this machine; `pages` maps paths to bytes, `asked` lists the requests."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.lie_about_length = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                page = outer.pages.get(self.path)
                if page is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(page) + outer.lie_about_length))
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    running = Server()
    yield running
    running.close()
