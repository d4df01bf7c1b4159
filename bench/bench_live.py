"""What a step on the live page costs: from the key to the frame that shows what came of it, on runs of some length.

Real time in a browser (Debian's Chromium): the request, the step, the rules, the data of the whole run, the drawing.
The goal is at most 150 ms on a run of 1,000 events and 500 ms on one of 20,000. Going back is a new process that
replays the steps; it is measured too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from statistics import median
from typing import Any

from raftlab.harness.options import DEFAULT
from raftlab.layout import ROOT
from raftlab.tools.live.run import Setup, TestRun
from raftlab.tools.live.server import LiveServer
from raftlab.tools.live.session import Session
from tests.unit.tools.page.browser import CHROMIUM, Browser

_STEPS = ("run 100ms", "campaign 1", "deliver", "heartbeat 1", "drop", "show")
_TIMED = (
    "(async (step) => { const began = performance.now(); performance.clearMarks('stepped'); "
    "const input = document.getElementById('step'); input.value = step; input.form.requestSubmit(); "
    "while (!performance.getEntriesByName('stepped').length) await new Promise((done) => setTimeout(done, 1)); "
    "await new Promise((done) => requestAnimationFrame(() => setTimeout(done))); return performance.now() - began; })"
)


def facts() -> Iterator[str]:
    if CHROMIUM is None:
        return
    raft = (ROOT / DEFAULT).resolve()
    with Browser() as browser:
        for events, test in ((1_000, "test_backup_2b"), (20_000, "test_figure8_unreliable_2c")):
            session = Session()
            first = session.open(Setup(raft, test, "", 7, test=TestRun(test)))
            branch = session.take_over(first.id, min(events, first.moments[0].events - 2))
            session.delete(first.id)
            server = LiveServer(session, files=list, gone_s=0.2)
            thread = threading.Thread(target=server.serve, daemon=True)
            thread.start()
            tab: Any = browser.open(server.url)
            tab.call("Page.bringToFront")
            taken = [tab.eval(f"{_TIMED}('{step}')") for step in _STEPS]
            length = f"{branch.moments[0].events:,} events"
            yield f"{length}: a step {median(taken):.0f} ms, the slowest of {len(taken)} {max(taken):.0f} ms"
            tab.eval("document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'u', bubbles: true }))")
            back = tab.eval(f"{_TIMED}('run 1s')")
            yield f"{length}: a step after going back, on a new branch {back:.0f} ms"
            tab.close()
            thread.join(20)
