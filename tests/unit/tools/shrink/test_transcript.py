"""Events of a run as steps of a scenario; and what happens to the choices of an edited plan."""

from labgob import encode
from labrpc.conditions import Transit
from labrpc.message import Message
from labrpc.network import QueuedMessage
from labsim import Event
from labsim.choices import Choices
from raft.messages import AppendEntriesArgs, ApplyMsg, LogEntry
from raftlab.tools.shrink.attempts import RunPlan
from raftlab.tools.shrink.plan_edits import rematch_messages, shift_choices, with_numbered_commands
from raftlab.tools.shrink.transcript import steps_of
from raftlab.trace import events
from raftlab.trace.events import CrashPoint, DropReason, StartResult
from raftlab.trace.operations import RecordedSchedule, ScheduledOperation

MS = 1_000_000


def about(kind, node, detail=None, at_ms=0):
    return Event(at_ms * MS, kind, node, 1, 0, detail, "")


def append(number, *commands):
    """The AppendEntries of that number, from 0 to 1."""
    args = AppendEntriesArgs(1, 0, 0, 0, [LogEntry(1, command) for command in commands], 0)
    return Message(number, "0", "1", "Raft.append_entries", encode(args), AppendEntriesArgs, number)


def of(kind, message):
    return Event(0, kind, "0", 1, message.id, message, "")


def test_step_names_which_message_arrives():
    first, second, empty = append(1, "x"), append(2, "x", "y"), append(3)
    sent = [of(events.SEND, message) for message in (first, second, empty)]
    arrived = [of(events.DELIVER, message) for message in (empty, second, first)]
    assert steps_of([*sent, *arrived]) == [
        "deliver 0->1 append 3 term 1",
        "deliver 0->1 append term 1 with y",
        "deliver 0->1 append term 1",
    ]
    answered = [of(events.ANSWER, message) for message in (first, second)]
    assert steps_of([*answered, of(events.REPLY, second)]) == ["deliver 1->0 append reply term 1 with y"]


def test_step_finds_the_message_of_equal_content():
    sent = append(7, "x")
    (step,) = steps_of([of(events.SEND, sent), of(events.DELIVER, sent)])
    assert step == "deliver 0->1 append term 1"
    under_way = [
        QueuedMessage(append(number, *commands), False) for number, commands in ((1, ()), (2, "x"), (3, "x"), (4, "y"))
    ]
    assert step.for_queue(under_way) == "deliver 0->1 append 2 term 1"
    assert step.for_queue(under_way[1:]) == "deliver 0->1 append term 1"
    assert step.for_queue(under_way[:1]) == step


def test_heartbeats_are_steps_on_request():
    asked = [about(events.START, "0", "x", 5), about(events.STARTED, "0", StartResult("x", 1, 1, True), 5)]
    sent = [Event(at_ms * MS, events.SEND, "0", 1, n, append(n), "") for n, at_ms in ((1, 5), (2, 9), (3, 9))]
    assert steps_of([*asked, *sent]) == ["start 0 x"]
    assert steps_of([*asked, *sent], heartbeats=True) == ["start 0 x", "heartbeat 0"]


def test_loss_at_a_down_peer_is_not_a_step():
    lost = Event(0, events.DROP, "", 1, 1, append(1), DropReason.UNPLUGGED)
    assert steps_of([of(events.SEND, append(1)), lost]) == ["drop 0->1 append term 1"]
    assert steps_of([about(events.CRASH, "1"), of(events.SEND, append(1)), lost]) == ["crash 1"]


def test_start_that_broke_the_rule_is_a_step():
    returned = [about(events.START, "0", "x"), about(events.STARTED, "0", StartResult("x", 1, 1, True))]
    assert steps_of([*returned, about(events.START, "0", "y")]) == ["start 0 x", "start 0 y"]
    refused = [about(events.START, "0", "x"), about(events.STARTED, "0", StartResult("x", -1, 1, False))]
    assert steps_of(refused) == []


def test_crash_point_precedes_its_step():
    arrived = [of(events.SEND, append(1, "x")), of(events.DELIVER, append(1, "x")), of(events.ANSWER, append(1, "x"))]
    armed = about(events.CRASH_AT, "1", CrashPoint("before save", 1))
    applied = about(events.APPLY, "1", ApplyMsg(command_valid=True, command="x", command_index=1))
    crashed = [of(events.REPLY, append(1, "x")), about(events.CRASH, "1")]
    assert steps_of([armed, *arrived, applied, *crashed], snapshot_every=2) == [
        "deliver 0->1 append term 1",
        "crash 1 before save",
        "snapshot 1 1",
        "deliver 1->0 append reply term 1",
    ]


def test_slow_snapshot_makes_the_service_busy():
    slow = about(events.SLOW_SNAPSHOTS, "1", 30.0)
    applied = about(events.APPLY, "1", ApplyMsg(command_valid=True, command="x", command_index=1), 5)
    meanwhile, later = about(events.PAUSE, "2", at_ms=34), about(events.PAUSE, "0", at_ms=35)
    assert steps_of([slow, applied, meanwhile, later], snapshot_every=2) == [
        "busy 1",
        "pause 2",
        "snapshot 1 1",
        "ready 1",
        "pause 0",
    ]


# ---- choices --------------------------------------------------------------------------------------------------------

THERE, BACK = ("request", "0->1", "Raft.append_entries"), ("reply", "0->1", "Raft.append_entries")


def chosen(transits):
    choices = Choices()
    choices.chosen = dict(transits)
    return choices


def test_removing_time_reduces_message_delay():
    choices = chosen(
        {
            (THERE, 1): Transit(400 * MS),
            (THERE, 2): Transit(30 * MS, duplicate_ns=300 * MS),
            (BACK, 1): Transit(90 * MS),
        }
    )
    choices.picked = {(50 * MS, 0): "main", (350 * MS, 1): "main"}
    asked_ns = {(THERE, 1): 10 * MS, (THERE, 2): 20 * MS, (BACK, 1): 310 * MS}
    left = shift_choices(choices, asked_ns, 300 * MS, 200 * MS)
    assert left.chosen == {
        (THERE, 1): Transit(200 * MS),
        (THERE, 2): Transit(30 * MS, duplicate_ns=100 * MS),
        (BACK, 1): Transit(90 * MS),
    }
    assert left.picked == {(50 * MS, 0): "main", (150 * MS, 1): "main"}


def test_choice_follows_its_message():
    choices = chosen({(THERE, 5): Transit(400 * MS), (("node", "0"), 1): 7})
    wanted_ns = {(THERE, 5): 500 * MS, (("node", "0"), 1): 0}
    sooner_ns = {(THERE, 1): 100 * MS, (THERE, 2): 490 * MS, (THERE, 3): 600 * MS, (("node", "0"), 1): 0}
    aimed = rematch_messages(choices, wanted_ns, sooner_ns)
    assert aimed.chosen == {(THERE, 2): Transit(400 * MS), (("node", "0"), 1): 7}
    assert rematch_messages(choices, wanted_ns, {(THERE, 5): 510 * MS}) is None
    save = ("save", "0", "1")
    assert rematch_messages(chosen({(save, 7): 5}), {(save, 7): 90 * MS}, {(save, 2): 91 * MS}).chosen == {(save, 2): 5}
    # None was sent at about that time.
    assert rematch_messages(choices, wanted_ns, {(THERE, 1): 100 * MS}) is None


def test_commands_are_numbered():
    acts = [
        ScheduledOperation(0, "start", [0, 1752927229]),
        ScheduledOperation(1, "crash1", [0]),
        ScheduledOperation(2, "start", [1, "x"]),
        ScheduledOperation(3, "start", [2, "x"]),
    ]
    plan = with_numbered_commands(RunPlan(Choices(), RecordedSchedule({}, False, acts, 9)))
    assert [act.args for act in plan.play.acts] == [[0, 1], [0], [1, 2], [2, 2]]
