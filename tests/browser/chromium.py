"""A real Chromium without a window, driven over the pipes of its DevTools protocol. It needs no driver and no port."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

_names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
program = next((found for name in _names if (found := shutil.which(name))), None)


class Browser:
    """One browser with one page. Close it, or use it in a `with`."""

    def __init__(self, profile: Path) -> None:
        if program is None:
            raise FileNotFoundError("apt-get install chromium")
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        options = [
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
            *("--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"),
        ]
        # Chromium reads commands from 3 and writes answers to 4.
        script = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", program, *options],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._last_id, self._session = b"", 0, ""
        self.requests: list[str] = []
        """The URLs that pages have asked for, and what their consoles have said."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable")

    def open(self, page: Path, width: int, *, height: int = 900, scheme: str = "light") -> None:
        """Show a file at a width, in a colour scheme, and wait until it is loaded."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.requests.clear()
        self._call("Page.navigate", url=page.absolute().as_uri())
        self._wait_for("Page.loadEventFired")

    def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise ValueError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of an element."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{place}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = self.run(f"(r => ({{x: r.x + r.width / 2, y: r.y + r.height / 2}}))({place}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **box)

    def write(self, text: str) -> None:
        """Type a text where the focus is."""
        self._call("Input.insertText", text=text)

    def screenshot(self, to: Path) -> None:
        """The whole page as a PNG."""
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        to.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        self._process.wait(30)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._last_id:
            pass
        if "error" in answer:
            raise ValueError(answer["error"])
        found: dict[str, Any] = answer["result"]
        return found

    def _wait_for(self, event: str) -> None:
        while self._next().get("method") != event:
            pass

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._read, 1 << 16)
            if not chunk:
                raise EOFError(f"{program} has ended with {self._process.wait()}")
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        given = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif message.get("method") == "Log.entryAdded":
            self.requests.append(given["entry"]["text"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.requests.append(given["exceptionDetails"]["text"])
