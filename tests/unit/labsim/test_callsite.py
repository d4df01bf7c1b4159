"""The name of a call that draws: what changes it, and what does not."""

import textwrap

from labsim import Simulation, random
from labsim.choices import RecordingSource, SeededSource

ORIGINAL = '''
def test_it():
    """A test."""
    def client():
        return random.uniform(1, 2)
    values = [random.random(), client()]
    for value in range(2):
        values.append(random.randrange(100) if value else random.choice("abc"))
    try:
        values.append(random.random())
    finally:
        values.append(random.randint(1, 6))
    return values
'''


def places(source, module="one"):
    """The choice points of the tester that such a test uses, each with what it drew there."""
    names = {"random": random, "__name__": module}
    exec(compile(textwrap.dedent(source), f"{module}.py", "exec"), names)
    recording = RecordingSource(SeededSource(5))
    (test,) = [value for name, value in names.items() if name.startswith("test_")]
    Simulation(5, choice_source=recording).run(test)
    return {(place[1], ordinal): value for (place, ordinal), value in recording.choices.chosen.items()}


def test_a_call_is_named_by_function_and_ordinal():
    assert sorted(places(ORIGINAL)) == [
        ("test#1", 1),
        ("test#2", 1),
        ("test#3", 1),
        ("test#4", 1),
        ("test#5", 1),
        ("test.<locals>.client#1", 1),
    ]


def test_an_edit_that_changes_nothing_changes_no_name():
    edited = ORIGINAL.replace('    """A test."""\n', "    # one more line\n\n\n").replace("value", "one_of_them")
    edited = edited.replace("[random.random(), client()]", "[\n        random.random(),\n        client(),\n    ]")
    edited = edited.replace("def test_it", "def test_of_another_name")
    assert places(edited, "elsewhere") == places(ORIGINAL)


def test_an_added_draw_changes_its_own_function_only():
    added = ORIGINAL.replace("    values = [", "    random.gauss(0, 1)\n    values = [")
    here, before = places(added), places(ORIGINAL)
    client = ("test.<locals>.client#1", 1)
    assert here[client] == before[client]
    assert here.keys() - before.keys() == {("test#6", 1)}


def test_a_finally_that_is_compiled_twice_is_one_call():
    raised = ORIGINAL.replace("values.append(random.random())\n    finally", "pass\n    finally")
    raised = raised.replace("values = [random.random(), ", "values = [")
    ended = raised.replace("        pass\n", "        return values\n")
    assert places(raised) == places(ended)
