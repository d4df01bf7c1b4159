"""A real browser for tests: Chromium over its debugging pipe, with nothing but the standard library.

    with Browser() as browser:
        tab = browser.open(path)
        tab.key("ArrowDown")
        tab.eval("document.title")

Promise: whatever a page complains about, or asks anybody for, is in `tab.complaints` and `tab.requests`.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"),
    *("--disable-component-update", "--disable-sync", "--disable-extensions", "--remote-debugging-pipe"),
)
_PATIENCE_S = 60  # a browser that says nothing for so long has hung
_SHIFTED = '!?+:"ABCDEFGHIJKLMNOPQRSTUVWXYZ'


class Browser:
    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        command_out, command_in = os.pipe()
        answer_out, answer_in = os.pipe()
        # The browser reads commands from 3 and writes answers to 4.
        script = f'exec "$@" 3<&{command_out} 4>&{answer_in}'
        arguments = [CHROMIUM, *_FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *arguments], pass_fds=(command_out, answer_in), stderr=subprocess.DEVNULL
        )
        os.close(command_out)
        os.close(answer_in)
        self._in, self._out = command_in, answer_out
        self._buffer = b""
        self._number = 0
        self._tabs = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._in)
        self._process.terminate()
        self._process.wait(20)
        os.close(self._out)
        self._folder.cleanup()

    def open(self, path, *, link="", dark=False, width=1280, height=800):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = self._tabs[session] = Tab(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        tab.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.call("Emulation.setEmulatedMedia", features=[scheme])
        tab.call(
            "Page.navigate", url=f"{path if str(path).startswith('http:') else Path(path).resolve().as_uri()}{link}"
        )
        tab.eval(
            "new Promise((ready) => { const look = () => document.documentElement?.dataset.ready ? ready() : "
            "setTimeout(look, 10); look(); })"
        )
        return tab

    def call(self, method, session=None, **params):
        self._number += 1
        number = self._number
        asked = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        self._write(json.dumps(asked).encode() + b"\0")
        while True:
            told = self._read()
            if told.get("id") == number:
                if "error" in told:
                    # A page that has just been left: it is asked again.
                    raise RuntimeError(f"{method}: {told['error']['message']}")
                return told["result"]
            if told.get("sessionId") in self._tabs:
                self._tabs[told["sessionId"]].hear(told["method"], told["params"])

    def _write(self, line):
        while line:
            line = line[os.write(self._in, line) :]

    def _read(self):
        while b"\0" not in self._buffer:
            if not select.select([self._out], [], [], _PATIENCE_S)[0]:
                raise RuntimeError(f"the browser has said nothing for {_PATIENCE_S} s")
            more = os.read(self._out, 1 << 16)
            if not more:
                raise RuntimeError("the browser has ended")
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)


class Tab:
    def __init__(self, browser, session, target):
        self._browser = browser
        self._session = session
        self._target = target
        self.complaints = []
        self.requests = []

    def call(self, method, **params):
        return self._browser.call(method, self._session, **params)

    def hear(self, method, params):
        if method == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(params["args"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def eval(self, source):
        for _ in range(50):
            try:
                told = self.call("Runtime.evaluate", expression=source, awaitPromise=True, returnByValue=True)
            except RuntimeError as error:
                if "Promise was collected" in str(error) or "context" in str(error) or "navigated" in str(error):
                    continue  # the blank page has gone, and the one that was asked for has come
                raise
            if "exceptionDetails" in told:
                raise AssertionError(told["exceptionDetails"].get("exception", {}).get("description", told))
            return told["result"].get("value")
        raise AssertionError("the page does not stay")

    def settle(self):
        """What was asked for is drawn; a tab that is not in front draws nothing."""
        self.call("Page.bringToFront")
        self.eval("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")

    def text(self, selector):
        return self.eval(f"document.querySelector({json.dumps(selector)})?.innerText ?? null")

    def texts(self, selector):
        return self.eval(f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.innerText)")

    def key(self, *keys):
        for key in keys:
            printed = {"text": key} if len(key) == 1 else {}
            if key == "Enter":
                printed = {"text": "\r"}
            shift = {"modifiers": 8} if key in _SHIFTED else {}
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **printed, **shift)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **shift)

    def write(self, text):
        self.call("Input.insertText", text=text)

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def wheel(self, x, y, by):
        self.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=by)

    def shot(self):
        """A PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def close(self):
        self._browser.call("Target.closeTarget", targetId=self._target)
