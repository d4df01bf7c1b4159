"""What a step on the live page costs: from the key to the frame that shows what came of it, on runs of some length.

In a browser (Debian's Chromium): the request, the step, the rules, the data of the whole run, the drawing. In real
time, and as CPU of server, run and page, which work one after the other: that is the delay on an idle machine.
The goal is at most 150 ms on a run of 1,000 events and 500 ms on one of 20,000. Going back is a new process that
replays the steps; it is measured in real time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from raftlab.harness.options import DEFAULT
from raftlab.layout import ROOT
from raftlab.tools.live.run import Setup, TestRun
from raftlab.tools.live.server import LiveServer
from raftlab.tools.live.session import Branch, Session
from tests.unit.tools.page.browser import CHROMIUM, Browser

_STEPS = ("run 100ms", "campaign 1", "deliver", "heartbeat 1", "drop", "show")
_TIMED = (
    "(async (step) => { const began = performance.now(); performance.clearMarks('stepped'); "
    "const input = document.getElementById('step'); input.value = step; input.form.requestSubmit(); "
    "while (!performance.getEntriesByName('stepped').length) await new Promise((done) => setTimeout(done, 1)); "
    "await new Promise((done) => requestAnimationFrame(() => setTimeout(done))); return performance.now() - began; })"
)


def _cpu_ms(tab: Any, session: Session, branch: Branch) -> float:
    figures = tab.call("Performance.getMetrics")["metrics"]
    page_s = next(one["value"] for one in figures if one["name"] == "TaskDuration")
    stat = Path(f"/proc/{session.process_id(branch.id)}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    run_s = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    return float(page_s + run_s + time.process_time()) * 1000


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
            tab.call("Performance.enable")
            taken, cpu = [], []
            for step in _STEPS:
                before_ms = _cpu_ms(tab, session, branch)
                taken.append(tab.eval(f"{_TIMED}('{step}')"))
                cpu.append(_cpu_ms(tab, session, branch) - before_ms)
            length = f"{branch.moments[0].events:,} events"
            yield f"{length}: a step {median(cpu):.0f} ms of CPU, the slowest of {len(cpu)} {max(cpu):.0f} ms"
            yield f"{length}: in real time {median(taken):.0f} ms, the slowest {max(taken):.0f} ms"
            tab.eval("document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'u', bubbles: true }))")
            back = tab.eval(f"{_TIMED}('run 1s')")
            yield f"{length}: the first step of a new branch {back:.0f} ms"
            tab.close()
            thread.join(20)
