"""`random` from the calling node's own seeded stream inside a simulation, and the standard module outside.

Every node has its own stream, as every process would: what one peer draws affects neither what another draws nor what
the network does.
"""

from __future__ import annotations

import random as _random
from sys import _getframe
from typing import TYPE_CHECKING, Any, Self

from labsim.choices import TesterStream
from labsim.current import run_context
from labsim.errors import RealWorldError


class Random(_random.Random):
    """Like the standard class, but without a seed it is seeded from the node's stream inside a simulation."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # A subclass may take any arguments. The seed does not matter here: __init__ sets it.
        return super().__new__(cls, 0)  # type: ignore[call-arg]  # typeshed does not know that it takes one

    def __init__(self, x: Any = None) -> None:
        simulation = run_context.simulation
        if x is None and simulation is not None:
            x = getrandbits(64)
        super().__init__(x)

    def seed(self, a: Any = None, version: int = 2) -> None:
        simulation = run_context.simulation
        if a is None and simulation is not None:
            a = getrandbits(64)
        super().seed(a, version)


class SystemRandom(_random.SystemRandom):
    def __init__(self, x: Any = None) -> None:
        if run_context.simulation is not None:
            raise RealWorldError("SystemRandom() ignores the seed; inside a simulation use random.Random()")
        super().__init__(x)


def seed(a: Any = None, version: int = 2) -> None:
    """Reseed the calling node's stream; without a seed, from the stream itself."""
    simulation = run_context.simulation
    if simulation is None:
        _random.seed(a, version)
        return
    simulation.current.stream.seed(getrandbits(64) if a is None else a, version)


if TYPE_CHECKING:
    # For a type checker, the standard objects, so that a peer is checked against their signatures.
    from random import betavariate as betavariate
    from random import choice as choice
    from random import choices as choices
    from random import expovariate as expovariate
    from random import gammavariate as gammavariate
    from random import gauss as gauss
    from random import getrandbits as getrandbits
    from random import getstate as getstate
    from random import lognormvariate as lognormvariate
    from random import normalvariate as normalvariate
    from random import paretovariate as paretovariate
    from random import randbytes as randbytes
    from random import randint as randint
    from random import random as random
    from random import randrange as randrange
    from random import sample as sample
    from random import setstate as setstate
    from random import shuffle as shuffle
    from random import triangular as triangular
    from random import uniform as uniform
    from random import vonmisesvariate as vonmisesvariate
    from random import weibullvariate as weibullvariate
else:

    def _drawing(name):
        outside = getattr(_random, name)

        def draw(*args, **kwargs):
            simulation = run_context.simulation
            if simulation is None:
                return outside(*args, **kwargs)
            stream = simulation.current.stream
            if stream.__class__ is TesterStream:
                stream.begin_draw(_getframe(1))
            return getattr(stream, name)(*args, **kwargs)

        draw.__name__ = draw.__qualname__ = name
        draw.__doc__ = outside.__doc__
        return draw

    for _name in set(_random.__all__) - globals().keys():
        globals()[_name] = _drawing(_name)
