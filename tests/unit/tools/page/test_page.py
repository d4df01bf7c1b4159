"""Pages in a real browser: six kinds of run, and all keys and clicks."""

import re
from types import SimpleNamespace

import pytest

from labsim import Event
from raftlab.harness.loader import load_peer
from raftlab.harness.options import DEFAULT
from raftlab.tools.page.command import run_summary, write_page
from raftlab.tools.page.data import page_data
from raftlab.tools.page.fields import run_with_fields
from raftlab.tools.page.html import render_page
from raftlab.tools.selection import select
from raftlab.trace.trace_file import RecordedMessage
from tests.mutants.tool.mutants import load_mutants
from unit.tools.page.browser import CHROMIUM, Browser
from unit.tools.page.test_data import hostile_page, unpacked

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")
MANY = 100_000


def wrong_peer(name, folder):
    (mutant,) = [mutant for mutant in load_mutants() if mutant.id == name]
    folder.mkdir()
    (folder / "raft.py").write_text(mutant.source())
    return folder / "raft.py"


def write_run(path, test, seed, raft=DEFAULT):
    (test,) = select([test])
    run, watch = run_with_fields(test, load_peer(raft), seed)
    told = run_summary(run, test.name, f"make replay TEST={test.name} SEED={seed}")
    write_page(path, run.simulation.trace, told, watch)


def many_events():
    """A cluster of seven at rest, and a start() now and then: told without being run."""
    events = [Event(0, "boot", str(i), 1, 0, None, "") for i in range(7)]
    events += [Event(0, "connect", str(i), 1, 0, None, "") for i in range(7)]
    number = index = 0
    while len(events) < MANY:
        number += 1
        at_ns = 100_000_000 * (number // 6)
        entries = []
        if number % 60 == 0:
            index += 1
            entries = [SimpleNamespace(term=1, command=f"command {index}")]
        args = SimpleNamespace(
            term=1, leader_id=0, prev_log_index=index, prev_log_term=1, entries=entries, leader_commit=index
        )
        message = RecordedMessage(number, "0", str(1 + number % 6), "Raft.append_entries", args)
        message._reply = SimpleNamespace(term=1, success=True)
        for kind, later in (("send", 0), ("deliver", 1), ("answer", 1), ("reply", 2)):
            node = "0" if kind in ("send", "reply") else message.target
            events.append(Event(at_ns + later * 1_000_000, kind, node, 1, number, message, ""))
    return sorted(events[:MANY], key=lambda event: event.at_ns)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    made = {
        name: folder / f"{name}.html"
        for name in ("passed", "rule", "split", "snapshots", "seven", "many", "rejoin", "bad")
    }
    write_run(made["passed"], "test_basic_agree_2b", 7)
    write_run(made["rule"], "test_figure8_unreliable_2c", 7, wrong_peer("figure8-commit", folder / "figure8"))
    write_run(made["split"], "test_split_votes_are_rare_2c", 0, wrong_peer("narrow-timeouts", folder / "narrow"))
    write_run(made["snapshots"], "test_snapshot_install_unreliable_2d", 7)
    write_run(made["seven"], "test_many_elections_2a", 7)
    write_run(made["rejoin"], "test_rejoin_2b", 7)
    events = many_events()
    made["many"].write_text(render_page(page_data(events, {"test": "many", "seed": 1, "failed": False}), "many"))
    (folder / "hostile").mkdir()
    made["bad"].write_text(hostile_page(folder / "hostile"))
    return made


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


@pytest.fixture
def show(browser, pages):
    """Opens a page; afterwards: no complaint, and nothing was asked of anybody."""
    tabs = []

    def open_(name, **how):
        tabs.append((name, browser.open(pages[name], **how)))
        return tabs[-1][1]

    yield open_
    for name, tab in tabs:
        tab.settle()
        assert tab.complaints == []
        assert [url.partition("#")[0] for url in tab.requests] == [pages[name].as_uri()]
        tab.close()


def at(tab):
    """Of the current event: its number, from 0."""
    return int(re.search(r"event (\d+) of", tab.text("#now"))[1]) - 1


def go(tab, place):
    """By a link, as somebody follows it."""
    tab.eval(
        "new Promise((done) => { addEventListener('hashchange', () => done(), { once: true }); "
        f"history.replaceState(null, '', '#'); location.hash = '#event={place + 1}'; }})"
    )


def data_in(pages, name):
    return unpacked(pages[name].read_text())


def times(data):
    at_ns, found = 0, []
    for step in data["events"]["time"]:
        at_ns += step
        found.append(at_ns)
    return found


def label_of(data, place):
    told = data["texts"][data["events"]["words"][place]]
    return told if isinstance(told, str) else told[0]


@pytest.mark.parametrize("name", ["passed", "rule", "split", "snapshots", "seven", "many"])
def test_every_kind_of_run_opens(name, show, pages):
    tab = show(name)
    data = data_in(pages, name)
    outcome = tab.text("#outcome")
    assert f"{len(data['events']['time']):,} events" in outcome
    assert outcome.startswith("failed after" if name in ("rule", "split") else "passed")
    assert len(tab.texts(".peer")) == len(data["lanes"]) == len(tab.texts(".head"))
    # Something is drawn: a canvas of one colour compresses to nothing.
    drawn = tab.eval("document.getElementById('lanes').toDataURL().length")
    assert drawn > 3 * tab.eval(
        "(() => { const c = document.createElement('canvas'); const l = "
        "document.getElementById('lanes'); c.width = l.width; c.height = l.height; "
        "return c.toDataURL().length; })()"
    )


def test_page_opens_at_the_failure(show, pages):
    tab = show("rule")
    run = data_in(pages, "rule")["run"]
    assert run["headline"] in tab.text("#failure")
    assert at(tab) == run["places"][-1]
    assert "accused" in tab.eval("document.querySelector('.head').className")  # peer 0
    tab.key("Home", "!")
    assert at(tab) == run["places"][-1]


def test_failure_comes_with_its_diagnosis(show, pages):
    assert "split votes" in show("split").text("#failure")


def test_steps_visit_shown_events(show, pages):
    tab, data = show("passed"), data_in(pages, "passed")
    shown = [place for place, how in enumerate(data["events"]["shown"]) if how == 0]
    tab.key("Home")
    seen = [at(tab)]
    for _ in range(30):
        tab.key("ArrowDown")
        seen.append(at(tab))
    assert seen == shown[:31]
    tab.key("k")
    assert at(tab) == shown[29]
    tab.key("End")
    assert at(tab) == shown[-1]
    ns = times(data)[shown[-1]]
    assert tab.text("#clock") == f"{ns / 1e9:.6f} s"


def test_keys_step_by_peer_election_commit_and_fault(show, pages):
    tab, data = show("seven"), data_in(pages, "seven")
    lane, shown = data["events"]["lane"], data["events"]["shown"]
    tab.key("Home", "e")
    first = data["jumps"]["election"][0]
    assert at(tab) == first
    tab.key("]")
    assert at(tab) == next(i for i in range(first + 1, len(lane)) if lane[i] == lane[first] and not shown[i])
    tab.key("[")
    assert at(tab) == first
    tab.key("e", "E")
    assert at(tab) == first
    tab.key("Home", "x", "x")
    faults = [place for place in data["jumps"]["fault"] if place > 0]
    assert at(tab) in faults
    tab = show("passed")
    tab.key("Home", "c", "c")
    assert at(tab) == data_in(pages, "passed")["jumps"]["commit"][1]


def test_arrow_keys_follow_a_message_both_ways(show, pages):
    tab, data = show("passed"), data_in(pages, "passed")
    calls = data["calls"]
    call = next(
        i for i, kind in enumerate(calls["kind"]) if data["texts"][kind] == "append" and not calls["heartbeat"][i]
    )
    go(tab, calls["sent"][call])
    for step in ("delivered", "answered", "replied"):
        tab.key("ArrowRight")
        assert at(tab) == calls[step][call]
    for step in ("answered", "delivered", "sent"):
        tab.key("ArrowLeft")
        assert at(tab) == calls[step][call]
    details = tab.text("#details")
    args = data["values"][calls["args"][call]]
    assert f"append #{calls['id'][call]}" in details
    for name in ("term", "leader_commit", "prev_log_index"):
        assert re.search(rf"{name}\s+{args[name]}\b", details)
    assert "reply arrived" in details and "success" in details
    assert "Causes" in details and "Effects" in details


def test_panel_agrees_with_the_trace(show, pages):
    tab, data = show("snapshots"), data_in(pages, "snapshots")
    for place in range(500, len(data["events"]["time"]), 1500):
        go(tab, place)
        assert at(tab) == place
        for lane, peer in enumerate(data["lanes"]):
            state = data["states"][lane]
            facts = dict(
                fact.rsplit(" ", 1)
                for fact in tab.texts(f'[data-peer="{peer["name"]}"] [data-fact]')
                if " of " not in fact
            )
            for name, default in (("term", 0), ("commit", 0), ("applied", 0)):
                changes = state[name]
                known = [changes[i + 1] for i in range(0, len(changes), 2) if changes[i] <= place]
                if name in facts:
                    assert facts[name] == str(known[-1] if known else default), (place, peer, name)
            badge = tab.text(f'[data-peer="{peer["name"]}"] .badge')
            roles = [state["role"][i + 1] for i in range(0, len(state["role"]), 2) if state["role"][i] <= place]
            assert badge in ("FCL"[roles[-1]], "✗")


def log_at(state, place):
    """The base and the entries after an event, from the changes up to it."""
    base, entries = 0, []
    for at_, new_base, _, keep, added in state["log"]:
        if at_ > place:
            break
        entries = entries[max(new_base - base, 0) : max(keep - base, 0)]
        entries += [-1] * (keep - new_base - len(entries))
        base = new_base
        for first, count in zip(added[::2], added[1::2], strict=True):
            entries += [-1] * count if first < 0 else range(first, first + count)
    return base, entries


def indexes_at(state, place):
    """What a leader is known to have told of its followers."""
    known, flat = {}, state["indexes"]
    for at_, follower, following, match in zip(*(flat[i::4] for i in range(4)), strict=True):
        if at_ <= place:
            known = {} if follower < 0 else known | {follower: f"{following}/{match}"}
    return known


@pytest.mark.parametrize("name", ["rule", "snapshots"])
def test_logs_are_right_at_every_event(name, show, pages):
    tab, data = show(name), data_in(pages, name)
    count = len(data["events"]["time"])
    boxes = (
        "[...document.querySelectorAll('.peer')].map((peer) => [...peer.querySelectorAll('.box')].map((box) => "
        "[box.className.split(' ').find((one) => ['gone', 'unknown', 'none'].includes(one)) ?? '', box.innerText]))"
    )
    seen = set()
    for place in [count - 1, *range(0, count, count // 25), 300, *range(count - 1, 0, -count // 25)]:
        go(tab, place)
        shown_indexes = [int(text) for text in tab.texts(".index")]
        first, last = (shown_indexes[0], shown_indexes[-1]) if shown_indexes else (1, 0)
        for lane, shown in enumerate(tab.eval(boxes)):
            base, entries = log_at(data["states"][lane], place)
            if not shown:
                assert base + len(entries) < first or last < first
                continue
            assert len(shown) == last - first + 1
            for index, (kind, text) in enumerate(shown, first):
                number = entries[index - base - 1] if base < index <= base + len(entries) else None
                wanted = "gone" if index <= base else "none" if number is None else "unknown" if number < 0 else ""
                assert kind == wanted, (place, lane, index)
                seen.add(kind)
                if not kind:
                    told = data["texts"][data["entries"]["text"][number]]
                    command = told if isinstance(told, str) else told[0]
                    assert text.split() == f"t{data['entries']['term'][number]} {command}".split()
        for lane, peer in enumerate(data["lanes"]):
            told = [text.split(": ") for text in tab.texts(f'[data-peer="{peer["name"]}"] .facts.indexes .fact')]
            known = indexes_at(data["states"][lane], place)
            if told:
                assert dict(told) == {data["lanes"][follower]["name"]: at_ for follower, at_ in known.items()}
    assert seen >= ({"", "gone"} if name == "snapshots" else {"", "none"})


def test_click_on_a_value_goes_to_the_event_that_set_it(show, pages):
    tab, data = show("rejoin"), data_in(pages, "rejoin")

    def click(selector):
        tab.key("End")
        tab.eval(f"document.querySelector({selector!r}).click()")
        return at(tab)

    for lane, peer in enumerate(data["lanes"]):
        state, of_it = data["states"][lane], f'[data-peer="{peer["name"]}"]'
        tab.key("End")
        end = at(tab)

        def since(name, state=state, end=end):
            return max(place for place in state[name][::2] if place <= end)

        shown = tab.eval(f"[...document.querySelectorAll('{of_it} [data-fact]')].map((one) => one.dataset.fact)")
        assert {"term", "commit", "applied"} <= set(shown)
        for fact in shown:
            assert click(f'{of_it} [data-fact="{fact}"]') == since("vote" if fact == "voted for" else fact)
        assert click(f"{of_it} .who") == max(since("role"), since("condition"))
        # The first entry in view: the last change that did not keep it.
        tab.key("End")
        index = int(tab.eval(f"document.querySelector('{of_it} .box').dataset.index"))
        assert click(f"{of_it} .box") == [place for place, _, _, keep, _ in state["log"] if keep < index][-1]
    tab.key("End")
    leader = tab.eval("document.querySelector('.facts.indexes').closest('.peer').dataset.peer")
    lane = next(i for i, one in enumerate(data["lanes"]) if one["name"] == leader)
    flat = data["states"][lane]["indexes"]
    assert click(".facts.indexes .fact") in flat[::4]
    tab.key("End")
    field = tab.text(".own th button")
    click(".own th button")
    assert field in tab.texts(".own tr.new th")


def logs_diverge(data, place):
    """Whether two logs are known to have other entries at one index."""
    logs = [log_at(state, place) for state in data["states"]]
    for index in range(1 + max(base for base, _ in logs), 1 + max(base + len(entries) for base, entries in logs)):
        here = {entries[index - base - 1] for base, entries in logs if index <= base + len(entries)} - {-1}
        if len(here) > 1:
            return True
    return False


def test_p_goes_to_where_logs_diverge_and_agree_again(show, pages):
    tab, data = show("rejoin"), data_in(pages, "rejoin")
    apart = [logs_diverge(data, place) for place in range(len(data["events"]["time"]))]
    turns = [place for place in range(1, len(apart)) if apart[place] != apart[place - 1]]
    assert len(turns) >= 2
    tab.key("Home")
    for place in turns:
        tab.key("p")
        assert at(tab) == place
        assert ("the logs diverge at entry" if apart[place] else "the logs agree again") in tab.text("#now")
    tab.key("p", "P")
    assert at(tab) == turns[-2]


def test_votes_are_counted_and_named(show, pages):
    tab, data = show("split"), data_in(pages, "split")
    told = tab.texts('[data-fact="votes"]')
    assert told and all(re.fullmatch(r"votes 1 of 5, from [012]", one) for one in told), (told, data["run"]["seed"])


def test_own_fields_show_the_running_line(show, pages):
    tab = show("rule")
    own = tab.text(".own")
    assert "peer 0's own fields" in own and "raft.py:" in own
    assert re.search(r"commit_index\s+3", own)


def test_latest_changes_are_highlighted(show):
    tab = show("rule")
    assert tab.texts('[data-peer="0"] .fact.new') == ["commit 3"]


def test_repetitions_collapse_and_expand(show, pages):
    tab, data = show("passed"), data_in(pages, "passed")
    folded = next(i for i, how in enumerate(data["events"]["shown"]) if how == 2)
    before = max(i for i in range(folded) if data["events"]["shown"][i] == 0)
    go(tab, before)
    tab.key("ArrowDown")
    assert data["events"]["shown"][at(tab)] == 0
    tab.key("ArrowUp", "f", "ArrowDown")
    assert at(tab) == before + 1
    tab.key("f", "Enter")  # opens the next fold alone
    assert data["events"]["fold"][at(tab)] >= 0


def test_find_and_filter(show, pages):
    tab, data = show("seven"), data_in(pages, "seven")
    tab.key("Home", "/")
    tab.write("denied")
    count = sum("denied" in label_of(data, place) for place in range(len(data["events"]["time"])))
    assert tab.text("#found") == f"{count:,} found"
    tab.key("Enter")
    assert "denied" in tab.text("#sentence")
    tab.key("Escape", "/")
    tab.write("#31")
    tab.key("Enter")
    assert "#31" in tab.text("#details h2")
    tab.key("Escape", "3")
    tab.key("Home", *["ArrowDown"] * 25)
    # Only messages of peer 3, and what the tester does.
    assert "peer 3" in tab.text("#sentence") or data["topics"][data["events"]["topic"][at(tab)]] == "tester"
    tab.key("3", "t")
    tab.eval(
        "(() => { const s = document.querySelector('#filters select'); s.value = '2'; "
        "s.dispatchEvent(new Event('change')); })()"
    )
    tab.key("Home")
    seen = set()
    for _ in range(15):
        tab.key("ArrowDown")
        if data["topics"][data["events"]["topic"][at(tab)]] != "tester":
            seen.add(data["events"]["term"][at(tab)])
    assert seen == {2}


def test_links_lead_to_a_moment(show, pages):
    data = data_in(pages, "seven")
    moments = times(data)
    tab = show("seven", link="#t=1.67&peer=1")
    lane = next(i for i, one in enumerate(data["lanes"]) if one["name"] == "1")
    assert at(tab) == max(i for i, ns in enumerate(moments) if ns <= 1.67e9 and data["events"]["lane"][i] == lane)
    tab.key("ArrowDown")
    # The address follows a little later.
    link = tab.eval(
        "new Promise((done) => { const old = location.hash; const look = () => location.hash === old ? "
        "setTimeout(look, 10) : done(location.hash); look(); })"
    )
    place = at(tab)
    assert at(show("seven", link=link)) == place


def test_help_dark_and_zoom_by_keys(show):
    tab = show("seven")
    tab.key("?")
    assert tab.eval("document.getElementById('help').open")
    tab.key("?")
    assert not tab.eval("document.getElementById('help').open")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = tab.eval(ground)
    tab.key("d")
    assert tab.eval(ground) != light
    tab.key("d")
    assert tab.eval(ground) == light
    assert show("seven", dark=True).eval(ground) != light
    picture = "document.getElementById('lanes').toDataURL()"
    pictures = []
    for key in ("z", "+", "-", "PageDown"):
        tab.key(key)
        tab.settle()
        pictures.append(tab.eval(picture))
    assert len(set(pictures)) == 3 and pictures[0] == pictures[2]  # in and out again
    tab.wheel(300, 400, -200)
    tab.settle()


def test_click_on_a_label_goes_to_its_event(show):
    tab = show("passed")
    tab.settle()
    before = at(tab)
    # The words of the first election are a little below the beginning; look for them in the lanes.
    for y in range(100, 500, 6):
        tab.click(560, y)
        if at(tab) != before:
            break
    assert at(tab) != before


def test_100_000_events_stay_usable(show):
    tab = show("many")
    tab.key("End")
    assert at(tab) > MANY * 0.9
    tab.key("ArrowUp", "f", "ArrowUp", "Home", "PageDown", "z", "-", "-", "-")
    tab.settle()


def test_hostile_text_does_nothing(show):
    tab = show("bad")
    for _ in range(4):
        tab.key("c")
    tab.key("End", "ArrowUp", "/")
    tab.write("onerror")
    tab.key("Enter")
    assert "onerror" in tab.text("#now")
    assert tab.eval("document.images.length") == 0
    assert tab.eval("document.title") != "owned"
    assert tab.eval("document.scripts.length") == 1


def test_it_prints(show):
    tab = show("rule")
    tab.call("Emulation.setEmulatedMedia", media="print")
    assert tab.eval("getComputedStyle(document.getElementById('steps')).display") == "none"
    assert tab.eval("document.getElementById('lanes').clientHeight") > 200
