"""Headless Chromium, driven over the DevTools protocol by a pair of pipes."""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.report.browser import CHROMIUM, FLAGS

#: How long the browser may take for anything.
PATIENCE = 60.0


class Page:
    """A page of the browser: `requests` are the addresses that it asked, `problems` what its console said."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._rest, self._number, self._session = b"", 0, None
        self.requests: list[str] = []
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """What the browser replies; events that come before it are noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while (got := self._next()).get("id") != self._number:
            self._note(got)
        assert "error" not in got, got
        return got["result"]

    def do(self, script: str) -> Any:
        """The value of an expression."""
        got = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + PATIENCE
        while not self.do(f"Boolean({script})"):
            assert time.monotonic() < deadline, f"it never came true: {script}"
            time.sleep(0.02)

    def press(self, *keys: str) -> None:
        """Press keys, as a person would."""
        codes = {"ArrowRight": 39, "ArrowLeft": 37, "Enter": 13, "Home": 36, "End": 35}
        for key in keys:
            code = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
            text = {"text": "\r"} if key == "Enter" else {}
            self.call("Input.dispatchKeyEvent", type="keyDown", **code, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._reading], [], [], PATIENCE)[0], "the browser is silent"
            read = os.read(self._reading, 2**16)
            assert read, "the browser has ended"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.problems.append(json.dumps(params))


@contextmanager
def browsing(folder: Path) -> Iterator[Page]:
    """A fresh browser with an empty page; the test is skipped where there is no Chromium."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    flags = [
        flag for flag in FLAGS if not flag.startswith(("--dump-dom", "--virtual-time", "--enable-logging"))
    ]
    command = [CHROMIUM, *flags, f"--user-data-dir={folder}", "--remote-debugging-pipe"]
    (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()

    def connect() -> None:
        """The browser reads its descriptor 3 and writes 4."""
        reading, writing = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_read, from_write))
        os.dup2(reading, 3)
        os.dup2(writing, 4)

    popen = subprocess.Popen(
        command, preexec_fn=connect, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Page(from_read, to_write)
    finally:
        popen.terminate()
        popen.wait(PATIENCE)
        os.close(to_write)
        os.close(from_read)
