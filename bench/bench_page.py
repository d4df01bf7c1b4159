"""The cost of a page of some 100,000 events: making it, opening it, and each step, jump and scroll.

Steps are measured in a browser (Debian's Chromium), as milliseconds of CPU of the page's main thread, from the key to
the end of the frame that shows it: script, style, layout, painting. That is the delay on an idle machine. Median and
95th percentile; the goal is at most 50 ms, and 2 s for the first view.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from labsim import time as virtual
from raftlab.harness.loader import load_peer
from raftlab.harness.options import DEFAULT
from raftlab.harness.run import run_test
from raftlab.scenarios.collection import collect
from raftlab.tools.page.command import run_summary, write_page
from raftlab.tools.page.fields import run_with_fields
from tests.unit.tools.page.browser import CHROMIUM, Browser

_ROUNDS = 28
_FRAME = (
    "new Promise((done) => requestAnimationFrame(() => { const after = new MessageChannel(); "
    "after.port1.onmessage = () => done(); after.port2.postMessage(0); }))"
)
_WHEEL = "document.getElementById('lanes').dispatchEvent(new WheelEvent('wheel', { deltaY: 120, cancelable: true }))"


@collect
def _busy(make_config: Any) -> None:
    """Seven peers, an unreliable network, a lost leader and a crash in every round."""
    cfg = make_config(servers=7, unreliable=True)
    cfg.begin("100,000 events")
    number = 0
    for _ in range(_ROUNDS):
        leader, _ = cfg.wait_for_leader()
        for _ in range(20):
            for _ in range(4):
                number += 1
                cfg.start(leader, f"command {number}")
            virtual.sleep(0.05)
        cfg.disconnect(leader)
        virtual.sleep(1.0)
        cfg.connect(leader)
        cfg.crash1((leader + 1) % 7)
        virtual.sleep(0.3)
        cfg.restart((leader + 1) % 7)
    cfg.end()


def _key(key: str) -> str:
    return f"document.body.dispatchEvent(new KeyboardEvent('keydown', {{ key: '{key}', bubbles: true }}))"


def _cpu_ms(tab: Any) -> float:
    figures = tab.call("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in figures if one["name"] == "TaskDuration")) * 1000


def _acts(tab: Any, times: int, act: Callable[[int], str]) -> str:
    took_ms = []
    for number in range(times):
        before_ms = _cpu_ms(tab)
        tab.eval(f"(async () => {{ {act(number)}; await {_FRAME}; }})()")
        took_ms.append(_cpu_ms(tab) - before_ms)
    return f"{median(took_ms):.1f} ms of CPU, 95 % within {quantiles(took_ms, n=20)[-1]:.1f}"


def _in_browser(path: Path, events: int) -> Iterator[str]:
    with Browser() as browser:
        tab = browser.open(path)
        tab.call("Page.bringToFront")
        tab.call("Performance.enable", timeDomain="threadTicks")
        tab.call("Page.reload")  # loading a page resets the figures
        ready_ms = tab.eval(
            "new Promise((done) => { const look = () => performance.getEntriesByName('ready').length ? "
            "done(performance.getEntriesByName('ready')[0].startTime) : setTimeout(look, 10); look(); })"
        )
        yield f"first view: {_cpu_ms(tab):.0f} ms of CPU, {ready_ms:.0f} ms by the clock"
        for where in (0.02, 0.5, 0.97):
            tab.eval(f"location.hash = '#event={int(events * where)}'")
            tab.settle()
            yield f"a step, after {where:.0%} of the run: {_acts(tab, 60, lambda _: _key('ArrowDown'))}"
        tab.eval(_key("Home"))
        yield f"a jump to the next election: {_acts(tab, 40, lambda _: _key('e'))}"
        yield f"a jump to the other end: {_acts(tab, 20, lambda number: _key(('End', 'Home')[number % 2]))}"
        yield f"a scroll: {_acts(tab, 60, lambda _: _WHEEL)}"
        tab.eval(_key("f"))
        yield f"a step, nothing collapsed: {_acts(tab, 40, lambda _: _key('ArrowDown'))}"
        tab.eval(_key("f"))
        for key in "z------":
            tab.eval(_key(key))
        yield f"a step, on a true time scale, zoomed out: {_acts(tab, 40, lambda _: _key('ArrowDown'))}"


def _cpu_s(work: Callable[[], Any]) -> tuple[float, Any]:
    began_s = time.process_time()
    made = work()
    return time.process_time() - began_s, made


def facts() -> Iterator[str]:
    launcher = load_peer(DEFAULT)
    plain_s, _ = _cpu_s(lambda: run_test(_busy, launcher, 7))
    watched_s, (run, watch) = _cpu_s(lambda: run_with_fields(_busy, launcher, 7))
    assert run.error is None, run.error
    trace = run.simulation.trace
    with tempfile.TemporaryDirectory(prefix="bench-page-") as folder:
        path = Path(folder) / "busy.html"
        page_s, _ = _cpu_s(lambda: write_page(path, trace, run_summary(run, "busy", ""), watch))
        yield (
            f"{len(trace):,} events: run {plain_s:.1f} s of CPU, and {watched_s:.1f} s with the peers' fields; "
            f"the page takes {page_s:.1f} s and {path.stat().st_size / 1e6:.1f} MB"
        )
        if CHROMIUM is None:
            yield "no browser found: apt-get install chromium"
            return
        yield from _in_browser(path, len(trace))
