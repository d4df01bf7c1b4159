"""Ctrl-C at any moment ends a command that has workers."""

import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor, _base

import pytest

from raftlab.tools.common.interrupts import defer_interrupts, first_done, result_of, sigterm_as_interrupt


def interrupted(sent, reached, error=None):
    with defer_interrupts():
        signal.raise_signal(sent)
        reached.append("the end")
        if error is not None:
            raise error


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_deferred_interrupt_is_raised_at_the_end(sent):
    reached = []
    with sigterm_as_interrupt(), pytest.raises(KeyboardInterrupt):
        interrupted(sent, reached)
    assert reached == ["the end"]
    with sigterm_as_interrupt(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(sent)  # as before


def test_deferred_interrupt_is_raised_after_an_error():
    error = ValueError("odd")
    with pytest.raises(KeyboardInterrupt) as raised:
        interrupted(signal.SIGINT, [], error)
    assert raised.value.__context__ is error


def test_ignored_signals_stay_ignored():
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with defer_interrupts():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)


def test_other_threads_defer_nothing():
    with ThreadPoolExecutor(1) as pool:
        assert result_of(pool.submit(lambda: first_done([pool.submit(int)]))) == set()


def interrupted_with_its_lock(monkeypatch):
    """Ctrl-C comes when wait() has the futures' locks."""
    acquire = _base._AcquireFutures.__enter__

    def acquired(self):
        acquire(self)
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(_base._AcquireFutures, "__enter__", acquired)


def test_an_interrupt_leaves_no_future_locked(monkeypatch):
    future = Future()
    interrupted_with_its_lock(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        first_done([future])
    thread = threading.Thread(target=future.set_result, args=(7,), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for the future's lock"
    assert result_of(future) == 7
