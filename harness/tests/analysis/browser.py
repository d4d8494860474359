"""Headless Chromium, driven over a pipe with nothing but the standard library: looks at a report as people do."""

import base64
import fcntl
import json
import os
import select
import subprocess
import tempfile
from pathlib import Path

from tokline.report.command import chromium

PATIENCE_S = 180


class NoAnswer(Exception):
    """Chromium does not answer."""


class Browser:
    """One Chromium with one page: DevTools' protocol, JSON with a NUL after each message, on descriptors 3 and 4."""
    def __init__(self):
        self._program = chromium()
        self.requests = []  # addresses that the page asked for

    def __enter__(self):
        self._profile = tempfile.TemporaryDirectory(prefix="tokline-chromium-", ignore_cleanup_errors=True)
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # Above 4, so that moving them to 3 and 4 overwrites neither.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_read, to_write)]
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                   "--no-first-run", "--disable-background-networking", "--remote-debugging-pipe",
                   f"--user-data-dir={self._profile.name}", "about:blank"]
        # Every other descriptor of Python's is closed when Chromium starts.
        self._process = subprocess.Popen(
            [self._program, *options], close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, preexec_fn=lambda: (os.dup2(ends[0], 3), os.dup2(ends[1], 4)))
        for end in (to_read, to_write, *ends):
            os.close(end)
        self._buffer, self._number, self._session, self._loaded = b"", 0, None, False
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Network", "Runtime"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._profile.cleanup()

    def call(self, method, **parameters):
        """One command, and its result. Events that come in between are looked at."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        try:
            os.write(self._write, json.dumps(message).encode() + b"\0")
        except OSError as error:
            raise NoAnswer(f"{self._program} has ended: {error.strerror}") from None
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise NoAnswer(f"{method}: {answer['error'].get('message')}")
                return answer["result"]

    def _next(self):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], PATIENCE_S)
            piece = os.read(self._read, 1 << 20) if ready else b""
            if not piece:
                raise NoAnswer(f"{self._program} did not answer" + ("" if ready else f" in {PATIENCE_S} s"))
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(line)
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        self._loaded |= message.get("method") == "Page.loadEventFired"
        return message

    def open(self, path, width, height, dark):
        """Shows a file at a size, in the light or the dark theme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self._loaded = False
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        while not self._loaded:
            self._next()

    def evaluate(self, expression):
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise ValueError(f"JavaScript: {result['exceptionDetails'].get('exception', {}).get('description')}")
        return result["result"].get("value")

    def screenshot(self, clip=None):
        """A PNG of the window, or of `clip` (x, y, width, height in the page)."""
        parameters = {"format": "png"}
        if clip:
            x, y, width, height = clip
            parameters |= {"clip": {"x": x, "y": y, "width": width, "height": height, "scale": 1},
                           "captureBeyondViewport": True}
        return base64.b64decode(self.call("Page.captureScreenshot", **parameters)["data"])
