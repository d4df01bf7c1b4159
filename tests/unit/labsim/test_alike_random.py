"""The random functions, in every runtime."""

import copy
import pickle
import random as standard

import pytest

from unit.labsim.alike import alike, simulated_only

DECK = list(range(52))


def shuffled(r):
    deck = DECK.copy()
    assert r.shuffle(deck) is None
    return deck


def whole(low, high):
    return lambda x: type(x) is int and low <= x <= high


def real(low, high):
    return lambda x: type(x) is float and low <= x <= high


ANY = (float("-inf"), float("inf"))

# What people call, and what the answer must look like. `r` is the module or a Random: the names are the same.
CALLS = {
    "random": (lambda r: r.random(), lambda x: type(x) is float and 0 <= x < 1),
    "uniform": (lambda r: r.uniform(150, 300), real(150, 300)),
    "uniform downwards": (lambda r: r.uniform(3, -3), real(-3, 3)),
    "randint": (lambda r: r.randint(150, 300), whole(150, 300)),
    "randint of one": (lambda r: r.randint(7, 7), whole(7, 7)),
    "randint keywords": (lambda r: r.randint(a=1, b=6), whole(1, 6)),
    "randrange": (lambda r: r.randrange(10), whole(0, 9)),
    "randrange from": (lambda r: r.randrange(-5, 5), whole(-5, 4)),
    "randrange step": (lambda r: r.randrange(0, 100, 10), lambda x: x in range(0, 100, 10)),
    "choice": (lambda r: r.choice(DECK), whole(0, 51)),
    "choice of str": (lambda r: r.choice("abc"), lambda x: x in ("a", "b", "c")),
    "choices": (lambda r: r.choices(DECK, k=9), lambda x: len(x) == 9 and set(x) <= set(DECK)),
    "choices one": (lambda r: r.choices(DECK), lambda x: type(x) is list and len(x) == 1),
    "choices weights": (lambda r: r.choices("ab", weights=[0, 1], k=5), lambda x: x == ["b"] * 5),
    "choices cum_weights": (lambda r: r.choices("ab", cum_weights=[3, 3], k=5), lambda x: x == ["a"] * 5),
    "shuffle": (shuffled, lambda x: x != DECK and sorted(x) == DECK),
    "sample": (lambda r: r.sample(DECK, 9), lambda x: len(set(x)) == 9 and set(x) <= set(DECK)),
    "sample range": (lambda r: r.sample(range(10**9), k=3), lambda x: len(set(x)) == 3),
    "sample counts": (lambda r: r.sample("ab", counts=[2, 1], k=3), lambda x: sorted(x) == ["a", "a", "b"]),
    "gauss": (lambda r: r.gauss(0, 1), real(-20, 20)),
    "gauss defaults": (lambda r: r.gauss(), real(-20, 20)),
    "normalvariate": (lambda r: r.normalvariate(100, 0), real(100, 100)),
    "lognormvariate": (lambda r: r.lognormvariate(0, 1), real(0, 1e9)),
    "expovariate": (lambda r: r.expovariate(0.5), real(0, 1e4)),
    "gammavariate": (lambda r: r.gammavariate(2, 3), real(0, 1e4)),
    "betavariate": (lambda r: r.betavariate(2, 3), real(0, 1)),
    "paretovariate": (lambda r: r.paretovariate(3), real(1, 1e12)),
    "weibullvariate": (lambda r: r.weibullvariate(1, 2), real(0, 1e4)),
    "vonmisesvariate": (lambda r: r.vonmisesvariate(0, 4), real(0, 6.2832)),
    "triangular": (lambda r: r.triangular(1, 5, 2), real(1, 5)),
    "triangular defaults": (lambda r: r.triangular(), real(0, 1)),
    "getrandbits": (lambda r: r.getrandbits(10), whole(0, 1023)),
    "getrandbits long": (lambda r: r.getrandbits(200), whole(0, 2**200 - 1)),
    "getrandbits none": (lambda r: r.getrandbits(0), whole(0, 0)),
    "randbytes": (lambda r: r.randbytes(5), lambda x: type(x) is bytes and len(x) == 5),
}
every_call = pytest.mark.parametrize("name", CALLS)


def draws(r, name, count=50):
    call, _ = CALLS[name]
    return [call(r) for _ in range(count)]


# Made here, where no simulation runs: what the standard generator says to seed 7.
AFTER_SEED_7 = {name: draws(standard.Random(7), name) for name in CALLS}


@alike
@every_call
def test_type_and_range(runtime, name):
    _, fits = CALLS[name]
    for value in draws(runtime.random, name):
        assert fits(value), value


@alike
@pytest.mark.parametrize("name", ["random", "uniform", "randint", "choice", "gauss", "shuffle", "getrandbits"])
def test_values_vary(runtime, name):
    assert len({str(value) for value in draws(runtime.random, name)}) > 5


@alike
def test_every_value_of_a_small_range_turns_up(runtime):
    """A fair die misses a face in 500 throws once in 10^39."""
    assert {runtime.random.randint(1, 6) for _ in range(500)} == {1, 2, 3, 4, 5, 6}
    assert {runtime.random.randrange(6) for _ in range(500)} == {0, 1, 2, 3, 4, 5}
    assert {runtime.random.choice("abc") for _ in range(500)} == {"a", "b", "c"}


@alike
@every_call
def test_seeded_random_gives_the_standard_sequence(runtime, name):
    assert draws(runtime.random.Random(7), name) == AFTER_SEED_7[name]


@alike
@every_call
def test_seeded_module_gives_the_standard_sequence(runtime, name):
    runtime.random.seed(7)
    assert draws(runtime.random, name) == AFTER_SEED_7[name]


@alike
@every_call
def test_setstate_brings_the_sequence_back(runtime, name):
    runtime.random.gauss()  # half of a pair: the other half is part of the state
    state = runtime.random.getstate()
    first = draws(runtime.random, name)
    draws(runtime.random, "random")
    assert runtime.random.setstate(state) is None
    assert draws(runtime.random, name) == first


@alike
@pytest.mark.parametrize("seed", [0, -5, 2**80, 1.5, "text", b"bytes", bytearray(b"bytes"), True])
def test_seed_takes_what_the_standard_takes(runtime, seed):
    def sequence():
        return [runtime.random.random() for _ in range(5)]

    runtime.random.seed(seed)
    first = sequence()
    runtime.random.seed(a=seed, version=2)
    assert sequence() == first
    own = runtime.random.Random(seed)
    assert [own.random() for _ in range(5)] == first
    runtime.random.seed("another")
    assert sequence() != first


@alike
def test_seed_without_argument_starts_something_else(runtime):
    runtime.random.seed(7)
    runtime.random.seed()
    assert draws(runtime.random, "random") != AFTER_SEED_7["random"]
    assert runtime.random.seed(None) is None


@alike
def test_random_objects_are_independent(runtime):
    one, other = runtime.random.Random(7), runtime.random.Random(7)
    runtime.random.seed(1)
    draws(other, "random")
    runtime.random.random()
    assert draws(one, "random") == AFTER_SEED_7["random"]


@alike
def test_random_objects_exchange_state(runtime):
    one, other = runtime.random.Random(1), runtime.random.Random(2)
    other.setstate(one.getstate())
    assert draws(one, "randint") == draws(other, "randint")


@alike
def test_unseeded_random_objects_differ(runtime):
    one, other = runtime.random.Random(), runtime.random.Random()
    assert draws(one, "random") != draws(other, "random")


@alike
def test_random_may_be_subclassed(runtime):
    class Loaded(runtime.random.Random):
        def random(self):
            return 0.5

    assert Loaded(1).uniform(0, 10) == 5.0
    assert isinstance(Loaded(1), runtime.random.Random)


@alike
def test_random_subclass_may_take_its_own_arguments(runtime):
    class Loaded(runtime.random.Random):
        def __init__(self, seed, bias, *, name):
            super().__init__(seed)
            self.bias, self.name = bias, name

    loaded = Loaded(7, 2, name="die")
    assert (loaded.bias, loaded.name) == (2, "die")
    assert draws(loaded, "random") == AFTER_SEED_7["random"]


@alike
def test_random_may_be_copied(runtime):
    one = runtime.random.Random(7)
    for other in (copy.copy(one), copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert draws(other, "random") == AFTER_SEED_7["random"]
    assert draws(one, "random") == AFTER_SEED_7["random"]


@alike
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda r: r.choice([]), IndexError),
        (lambda r: r.choices([]), IndexError),
        (lambda r: r.choices([1, 2], weights=[1]), ValueError),
        (lambda r: r.choices([1, 2], weights=[0, 0]), ValueError),
        (lambda r: r.choices([1, 2], weights=[1, 1], cum_weights=[1, 2]), TypeError),
        (lambda r: r.randrange(0), ValueError),
        (lambda r: r.randrange(5, 5), ValueError),
        (lambda r: r.randrange(0, 10, 0), ValueError),
        (lambda r: r.randrange(), TypeError),
        (lambda r: r.randint(2, 1), ValueError),
        (lambda r: r.randint(1), TypeError),
        (lambda r: r.sample([1], 2), ValueError),
        (lambda r: r.sample([1], -1), ValueError),
        (lambda r: r.sample({1, 2}, 1), TypeError),
        (lambda r: r.shuffle((1, 2)), TypeError),
        (lambda r: r.getrandbits(-1), ValueError),
        (lambda r: r.getrandbits(1.5), TypeError),
        (lambda r: r.randbytes(-1), ValueError),
        (lambda r: r.expovariate(0), ZeroDivisionError),
        (lambda r: r.gammavariate(0, 1), ValueError),
        (lambda r: r.uniform("a", "b"), TypeError),
        (lambda r: r.random(1), TypeError),
        (lambda r: r.seed([]), TypeError),
        (lambda r: r.setstate((99, (), None)), ValueError),
    ],
)
def test_errors(runtime, call, error):
    with pytest.raises(error):
        call(runtime.random)
    assert 0 <= runtime.random.random() < 1


@alike
def test_every_thread_may_draw(runtime):
    drawn = []

    def target():
        for _ in range(5):
            drawn.append(runtime.random.random())
            runtime.time.sleep(0.001)

    runtime.join(*[runtime.spawn(target) for _ in range(4)])
    assert len(set(drawn)) == 20


@simulated_only
def test_the_module_offers_every_standard_name(runtime):
    missing = [name for name in standard.__all__ if not hasattr(runtime.random, name)]
    assert missing == []
