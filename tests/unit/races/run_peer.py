"""Runs a few lines of code as a peer: rewritten, on a simulated node, with race detection."""

import ast
import sys
import textwrap
from types import ModuleType

from labsim import Simulation, current_node, current_simulation
from labsim.ordered import Ordering
from raftlab.races.detector import RaceDetector
from raftlab.races.fields import FieldNames
from raftlab.races.preemption import Preempter
from raftlab.races.report import describe_benign_race
from raftlab.races.rewriter import rewrite
from raftlab.races.sites import SiteTable

HEAD = "from labsim import queue, random, threading, time\n"
FILE = "peer.py"


class Ran:
    def __init__(self):
        self.value = None
        self.error = None
        self.remarks = []
        self.digest = ""
        self.simulation = None

    @property
    def report(self):
        """The report of the race, line by line."""
        return [self.error.text, *self.error.evidence]


def run_peer(source, seed=0, *, preempt=False, choice_source=None, calls=("main",)):
    """`calls`: functions of the module that run on the node, concurrently."""
    source = (HEAD + textwrap.dedent(source)).encode()
    sites, fields = SiteTable(), FieldNames([ast.parse(source)])
    code = rewrite(source, FILE, sites, fields, preempt=preempt)
    ran = Ran()
    simulation = ran.simulation = Simulation(seed, choice_source=choice_source)
    simulation.ordering = Ordering(simulation)

    def load():
        detector = RaceDetector(current_simulation(), current_node(), sites, frozenset(("racing_peer",)))
        ran.detector = detector
        module = ModuleType("racing_peer")
        sys.modules[module.__name__] = module  # dataclasses look it up
        preempter = Preempter(current_simulation(), current_node())
        vars(module).update(
            detector.helpers(),
            __preempt__=preempter.statement,
            __unlocked__=preempter.unlocked,
            __relock__=preempter.relock,
        )
        exec(code, vars(module))
        if hasattr(module, "make"):
            module.make()
        simulation.ordering.made(current_node())
        return module

    def main():
        node = simulation.node("1")
        module = simulation.call_on(node, load)
        tasks = [simulation.spawn(getattr(module, name), name=f"{name}()", node=node) for name in calls]
        for task in tasks:
            simulation.join(task)
        return tasks[0].value

    try:
        ran.value = simulation.run(main)
    except Exception as error:
        ran.error = error
    finally:
        sys.modules.pop("racing_peer", None)
    ran.remarks = list(map(describe_benign_race, ran.detector.benign_races.values()))
    ran.digest = simulation.digest()
    return ran
