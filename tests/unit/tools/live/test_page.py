"""The live page in a real browser: each action, branches, changed code, errors of the peer, hostile content."""

import json
import re
import threading

import pytest

from raftlab.tools.live.run import Setup, TestRun
from raftlab.tools.live.server import LiveServer
from raftlab.tools.live.session import Session, peer_files
from tests.mutants.tool.mutants import load_mutants
from unit.students import ROOT
from unit.tools.live.test_session import HEADER, REFERENCE
from unit.tools.page.browser import CHROMIUM, Browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture
def live(browser):
    """Opens a live page; afterwards: no complaint, and nothing was asked of anybody but its server."""
    opened = []

    def open_(raft=REFERENCE, header=HEADER, test=None, **how):
        session = Session()
        setup = Setup(raft, "live.scenario", header) if test is None else Setup(raft, test, "", 7, test=TestRun(test))
        session.open(setup, name="main")
        server = LiveServer(session, files=lambda: peer_files(raft), gone_s=0.5)
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        tab = browser.open(server.url, **how)
        opened.append((server, thread, tab))
        return tab

    yield open_
    for server, thread, tab in opened:
        tab.settle()
        assert tab.complaints == []
        assert {url.startswith(server.url) for url in tab.requests} == {True}
        tab.close()
        thread.join(20)
        assert not thread.is_alive()


def settle(tab):
    tab.eval(
        "new Promise((done) => { const look = () => document.body.classList.contains('busy') ? setTimeout(look, 5) : "
        "done(); look(); })"
    )
    tab.settle()


def press(tab, *keys):
    for key in keys:
        tab.key(key)
        settle(tab)


def enter_steps(tab, *steps):
    for step in steps:
        tab.key(":")
        tab.write(step)
        press(tab, "Enter")


def click(tab, selector, text):
    """The first that has this text."""
    found = tab.eval(
        f"(() => {{ const one = [...document.querySelectorAll({json.dumps(selector)})].find((each) => "
        f"each.innerText.trim().startsWith({json.dumps(text)})); one?.click(); return Boolean(one); }})()"
    )
    assert found, (selector, text)
    settle(tab)


def steps(tab):
    return [line.partition(" ")[2] for line in tab.texts("#steps-made button")][1:]


def facts(tab, peer):
    return " ".join(tab.texts(f'[data-peer="{peer}"]'))


def changed(tab):
    return tab.eval("[...document.querySelectorAll('#peers .new')].map((one) => one.innerText.trim())")


def test_the_documents_name_every_key():
    script = (ROOT / "raftlab/tools/live/web/live.js").read_text().partition("const EXAMPLES")[0]
    keys = re.findall(r'^  \["([^"]+)", "', script, re.MULTILINE)
    told = (ROOT / "docs/student/live.md").read_text()
    assert len(keys) > 15
    assert [key for key in keys if f"| `{key}` |" not in told] == []


def test_an_election_by_keys(live):
    tab = live()
    press(tab, "0", "v")
    assert steps(tab) == ["campaign 0"]
    assert tab.text("#flight-title") == "In flight: 2"
    press(tab, "g", "g")
    assert len(steps(tab)) == 3 and facts(tab, 0).startswith("L")
    assert changed(tab)[0] == "peer 0"
    press(tab, "g", "l", "D")
    press(tab, "s")
    press(tab, "Enter", "D")
    assert steps(tab)[-2:] == ["start 0 x1", "deliver"] and "applied 1" in facts(tab, 0)
    press(tab, "q", "Q", "a")
    assert steps(tab)[-3:] == ["crash 0", "restart 0", "pause 0"]
    press(tab, "a", "i", "i", "r", "*", "r", "w")
    assert steps(tab)[-6:] == ["resume 0", "cut 0", "heal 0", "run 0 100ms", "run 100ms", "run until send"]


def test_clicks_do_what_keys_do(live):
    tab = live()
    click(tab, ".head", "F peer 2")
    assert tab.eval("Boolean(document.querySelector('[data-step=\"campaign 2\"]'))")
    click(tab, "#subjects button", "1")
    click(tab, ".action", "campaign 1")
    tab.eval("document.querySelectorAll('.flying')[0].querySelectorAll('.action')[2].click()")
    settle(tab)
    tab.eval("document.querySelectorAll('.flying')[0].querySelectorAll('.action')[1].click()")
    settle(tab)
    assert [step.split()[0] for step in steps(tab)] == ["campaign", "duplicate", "drop"]
    click(tab, ".action", "cut 1 0")
    click(tab, ".action", "heal 1 0")
    click(tab, ".action", "crash 1 before save")
    assert steps(tab)[-3:] == ["cut 1 0", "heal 1 0", "crash 1 before save"]


def test_heartbeats_snapshots_and_partitions(live):
    tab = live()
    enter_steps(tab, "campaign 0", "deliver", "start 0 x", "deliver")
    press(tab, "0", "h", "D", "o")
    tab.write("1")
    press(tab, "Enter", "*")
    click(tab, ".action", "partition")
    tab.write("0 | 1 2")
    press(tab, "Enter")
    assert steps(tab)[-4:] == ["heartbeat 0", "deliver", "snapshot 0 1", "partition 0 | 1 2"]
    press(tab, "H", "S")
    assert steps(tab)[-1] == "heal" and "lab scenario FILE" in tab.text("#export")


def test_the_message_of_the_current_event_is_chosen(live):
    tab = live()
    enter_steps(tab, "campaign 0")
    count = int(re.search(r"event \d+ of (\d+)", tab.text("#now"))[1])
    chosen = set()
    for event in range(count - 5, count + 1):
        tab.eval(f"location.hash = '#event={event}'")
        settle(tab)
        tab.settle()
        chosen.add(tab.text(".flying.chosen button") if "→" in tab.text("#sentence") else None)
    assert len(chosen - {None}) == 2


def test_what_cannot_be_done_says_why(live):
    tab = live()
    press(tab, "2", "h")
    assert tab.text("#status") == "heartbeat 2: peer 2 does not lead" and steps(tab) == []
    shown = tab.eval("document.querySelector('[data-step=\"restart 2\"]').title")
    assert shown == "not now: peer 2 is up"
    enter_steps(tab, "frob 3")
    assert "there is no step 'frob'" in tab.text("#status") and steps(tab) == []


def test_going_back_and_doing_something_else_is_a_branch(live):
    tab = live()
    enter_steps(tab, "campaign 0", "deliver", "start 0 x", "deliver")
    press(tab, "u", "u")
    assert tab.text("#made-title") == "Step 2 of 4: go on here as a branch"
    assert "applied 0" in facts(tab, 0)
    press(tab, "0", "q")
    assert steps(tab) == ["campaign 0", "deliver", "crash 0"] and tab.text("#title") == "branch 2"
    press(tab, "b")
    assert tab.text("#branches").count("steps") == 2
    tab.eval(
        "(() => { const name = document.querySelectorAll('#branches input')[1]; name.value = 'a crash'; "
        "name.dispatchEvent(new Event('change')); })()"
    )
    tab.eval("new Promise((done) => setTimeout(done, 200))")
    assert tab.text("#title") == "a crash"
    click(tab, "#branches button", "beside")
    tab.eval("new Promise((done) => setTimeout(done, 300))")
    assert "The first difference is event" in tab.text("#banner") and "in step 3, crash 0" in tab.text("#banner")
    assert tab.eval("document.getElementById('beside').clientWidth") > 200
    press(tab, "B", "b")
    click(tab, "#branches button", "go there")
    assert steps(tab) == ["campaign 0", "deliver", "start 0 x", "deliver"]
    press(tab, "b")
    click(tab, "#branches button", "delete")
    tab.eval("new Promise((done) => setTimeout(done, 200))")
    assert tab.text("#branches").count("steps") == 1


def test_a_page_that_is_loaded_again_shows_the_same_branch(live):
    tab = live()
    enter_steps(tab, "campaign 0", "deliver")
    press(tab, "u", "0", "q")
    tab.eval("document.documentElement.dataset.ready = ''; setTimeout(() => location.reload()); true")
    tab.eval("new Promise((done) => setTimeout(done, 500))")
    ready = "document.documentElement.dataset.ready ? done() : setTimeout(look, 20)"
    tab.eval(f"new Promise((done) => {{ const look = () => {ready}; look(); }})")
    assert tab.text("#title") == "branch 2" and steps(tab) == ["campaign 0", "crash 0"]


def test_a_violation_is_shown_at_its_step(live, tmp_path):
    (found,) = [one for one in load_mutants() if one.id == "double-vote"]
    (tmp_path / "raft.py").write_text(found.source())
    tab = live(tmp_path / "raft.py")
    enter_steps(tab, "campaign 0", "campaign 1", "deliver 0->2 vote", "deliver 1->2 vote")
    assert tab.text("#outcome") == "violates one-vote"
    assert "voted" in tab.text("#failure") and len(tab.texts("#failure .evidence")) == 4
    press(tab, "D")
    assert tab.text("#status") == "deliver: the run has ended here; go back to an earlier step"
    press(tab, "u", "D")
    assert tab.text("#title") == "branch 2"


def test_changed_code_is_offered_and_compared(live, tmp_path):
    raft = tmp_path / "raft.py"
    raft.write_text(REFERENCE.read_text())
    tab = live(raft)
    enter_steps(tab, "campaign 0", "campaign 1", "deliver 0->2 vote", "deliver 1->2 vote")
    (found,) = [one for one in load_mutants() if one.id == "double-vote"]
    raft.write_text(found.source())
    tab.eval(
        "new Promise((done) => { const look = () => document.getElementById('banner').hidden ? "
        "setTimeout(look, 20) : done(); look(); })"
    )
    assert "raft.py changed" in tab.text("#banner")
    press(tab, "T")
    tab.eval("new Promise((done) => setTimeout(done, 300))")
    assert tab.text("#outcome") == "violates one-vote"
    assert "in step 4, deliver 1->2 vote" in tab.text("#banner")
    raft.write_text("def broken(:\n")
    press(tab, "T")
    assert "raft.py:1" in tab.text("#status")


def test_what_if_and_taking_over_a_failed_run(live, tmp_path):
    (found,) = [one for one in load_mutants() if one.id == "figure8-commit"]
    (tmp_path / "raft.py").write_text(found.source())
    tab = live(tmp_path / "raft.py", test="test_figure8_unreliable_2c")
    assert tab.text("#outcome") == "violates earned-commit" and steps(tab) == []
    press(tab, "v")
    assert steps(tab) == []
    enter_steps(tab, "campaign 0")
    assert "take the run over first" in tab.text("#status")
    press(tab, "ArrowUp", "ArrowUp", "ArrowUp")
    click(tab, ".action", "is lost")
    tab.eval("new Promise((done) => setTimeout(done, 500))")
    assert "The first difference is event" in tab.text("#banner")
    press(tab, "B", "Home", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown", "K")
    assert tab.text("#title").startswith("from event") and tab.text("#outcome").startswith("0 steps")
    enter_steps(tab, "heal", "run 1s")
    assert steps(tab) == ["heal", "run 1s"]
    press(tab, "S")
    tab.eval(
        "new Promise((done) => { const look = () => document.getElementById('export').innerText.includes("
        "'On the command line') ? done() : setTimeout(look, 20); look(); })"
    )
    assert "the run passes" in tab.text("#export")


def test_an_error_of_the_peer_is_shown_with_its_line(live, tmp_path):
    source = REFERENCE.read_text()
    head = "    def start(self, command: Any) -> tuple[int, int, bool]:\n"
    (tmp_path / "raft.py").write_text(source.replace(head, f"{head}        raise KeyError('<b>lost</b>')\n"))
    tab = live(tmp_path / "raft.py")
    enter_steps(tab, "campaign 0", "deliver", "start 0 x")
    line = source.partition(head)[0].count("\n") + 2
    assert f"raft.py:{line}" in tab.text("#failure") and "<b>lost</b>" in tab.text("#failure")
    press(tab, "u", "0", "q")
    assert steps(tab)[-1] == "crash 0"


def test_hostile_commands_and_log_lines_are_only_text(live, tmp_path):
    source = REFERENCE.read_text()
    head = "    def start(self, command: Any) -> tuple[int, int, bool]:\n"
    line = "        from labsim import log\n        log('leader', '</script><img src=x onerror=alert(1)>', self.me)\n"
    (tmp_path / "raft.py").write_text(source.replace(head, head + line))
    tab = live(tmp_path / "raft.py")
    tab.eval("window.alert = () => { document.title = 'alerted'; }; true")
    enter_steps(tab, "campaign 0", "deliver", "start 0 </script><img/src=x/onerror=alert(1)>", "deliver")
    assert "<img" in " ".join(tab.texts("#peers .box")) or "<img" in tab.text("#steps-made")
    press(tab, "b", "Escape", "S", "Escape")
    assert tab.eval("document.querySelectorAll('img').length") == 0 and tab.eval("document.title") != "alerted"


def test_saved_branches_are_the_runs_that_were_seen(live):
    tab = live()
    enter_steps(tab, "campaign 0", "deliver", "start 0 x")
    text = tab.eval("fetch('scenario?branch=1').then((answer) => answer.text())")
    assert text.splitlines()[-3:] == ["campaign 0", "deliver", "start 0 x"]
    html = tab.eval("fetch('page?branch=1').then((answer) => answer.text())")
    assert "Content-Security-Policy" in html and "connect-src 'none'" in html


@pytest.mark.parametrize("figure", ["Figure 7", "Figure 8", "Split vote", "Stale leader"])
def test_the_help_plays_the_figure(live, figure):
    tab = live()
    press(tab, "?")
    click(tab, "#help .recipe button", figure)
    click(tab, "#new button", "Begin")
    count = int(re.search(r"step 1 of (\d+):", tab.text("#banner"))[1])
    press(tab, *["G"] * count)
    assert len(steps(tab)) == count >= 5
    assert tab.text("#banner") == "" and tab.text("#failure") == ""
    assert not tab.eval("document.getElementById('status').classList.contains('refused')")


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_on_a_projector_and_when_enlarged(live, dark):
    tab = live(header="snapshots\npeers 5", width=1280, height=720, dark=dark)
    press(tab, "0", "v")
    assert tab.eval("document.documentElement.scrollWidth") <= 1280
    assert tab.eval("document.documentElement.scrollHeight") <= 720
    for selector in ("#lanes", "#messages", "#actions", "#step", "#peers"):
        assert tab.eval(f"document.querySelector('{selector}').getBoundingClientRect().top") < 700
    small = live(width=640, height=360)  # 200 % of 1280x720
    assert small.eval("document.documentElement.scrollWidth") <= 640
    press(small, "0", "v")
    assert steps(small) == ["campaign 0"]


def test_a_foreign_page_and_a_wrong_token_get_nothing(browser, tmp_path):
    session = Session()
    session.open(Setup(REFERENCE, "live.scenario", HEADER))
    server = LiveServer(session, files=list, gone_s=60)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    foreign = tmp_path / "foreign.html"
    foreign.write_text("<script>document.documentElement.dataset.ready = 'yes'</script>")
    tab = browser.open(foreign)
    wrong = server.url.replace(server.token, "guess")
    body = json.dumps({"branch": 1, "at": 0, "step": "campaign 0"})
    for how in (f"{{ method: 'POST', mode: 'no-cors', body: {json.dumps(body)} }}", "{ mode: 'no-cors' }"):
        for url in (f"{server.url}act", f"{server.url}look", server.url, wrong):
            told = tab.eval(
                f"fetch({json.dumps(url)}, {how}).then((a) => `${{a.status}} ${{a.type}}`, (e) => 'refused')"
            )
            assert told in ("0 opaque", "refused")
    assert session.branch(1).steps == []
    frame = (
        f"(() => {{ const frame = document.createElement('iframe'); frame.src = {json.dumps(server.url)}; "
        "document.body.append(frame); })()"
    )
    tab.eval(frame)
    tab.eval("new Promise((done) => setTimeout(done, 500))")
    assert server._pages == 0  # a page in a frame would have asked for its events
    tab.close()
    server.shutdown()
    server.server_close()
    session.close()
