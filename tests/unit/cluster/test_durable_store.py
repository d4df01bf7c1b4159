"""Saves are durable; a torn last save gives the one before it, and any other damage is refused."""

import errno
import os
import random
import shutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlab.cluster import durable_store as disk_module
from raftlab.cluster.durable_store import (
    DataOwner,
    DurableStore,
    StoreError,
    _apply_differences,
    _differences,
    persister_on,
)
from unit.soak import SOAK

ME = DataOwner(0, 3)


def saves(folder, *states):
    """Save these states with one open store."""
    disk = DurableStore(folder, ME)
    for state in states:
        disk.write(*state)
    disk.close()


def read(folder):
    disk = DurableStore(folder, ME)
    disk.close()
    return disk.raft_state, disk.snapshot


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in (".a", ".b")}


def log(entries):
    """Like Raft's state: a length near the start, and a growing tail."""
    return entries.to_bytes(4, "big") + b"".join(b"entry %d of some length;" % i for i in range(entries))


# ---- Saving and reading --------------------------------------------------------------------------------------


def test_persister_has_the_last_save(tmp_path):
    persister = persister_on(DurableStore(tmp_path / "peer", ME))
    assert (persister.read_raft_state(), persister.read_snapshot()) == (b"", b"")
    persister.save(b"state", b"snapshot")
    persister.save(b"state 2")  # keeps the snapshot
    assert (persister.read_raft_state(), persister.read_snapshot()) == (b"state 2", b"snapshot")
    os.close(_lock_of(persister))
    again = persister_on(DurableStore(tmp_path / "peer", ME))
    assert (again.read_raft_state(), again.read_snapshot()) == (b"state 2", b"snapshot")


def _lock_of(persister):
    """Close all files, as the end of a process does."""
    disk = persister.on_save.__closure__[0].cell_contents
    lock, disk._lock = disk._lock, None
    return lock


@given(st.lists(st.tuples(st.binary(max_size=2000), st.binary(max_size=2000)), min_size=1, max_size=8))
@settings(deadline=None, max_examples=200 if SOAK else 15, database=None)
def test_last_save_is_read(tmp_path_factory, states):
    folder = tmp_path_factory.mktemp("disk") / "peer"
    for state in states:  # reopened for each, and then all in one
        saves(folder, state)
        assert read(folder) == state
    saves(folder, *states)
    assert read(folder) == states[-1]


@given(st.binary(max_size=3000), st.data())
@settings(deadline=None, max_examples=300 if SOAK else 40, database=None)
def test_differences_restore_the_new_state(old, data):
    new = bytearray(old)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(new)))
        new[at : at + data.draw(st.integers(0, 300))] = data.draw(st.binary(max_size=300))
    new = bytes(new)
    found = list(_differences(old, new))
    assert _apply_differences(old, len(new), found) == new
    assert all(found[i][0] + len(found[i][1]) < found[i + 1][0] for i in range(len(found) - 1))


def test_one_more_entry_writes_few_bytes(tmp_path):
    disk = DurableStore(tmp_path / "peer", ME)
    disk.write(log(5000), b"snapshot" * 1000)
    before = sum(map(len, contents(tmp_path / "peer").values()))
    disk.write(log(5001), disk.snapshot)
    written = sum(map(len, contents(tmp_path / "peer").values())) - before
    disk.close()
    # The first block and the last one or two, in a state of over 100 kB.
    assert len(log(5001)) > 100_000 and written < 600


def test_files_do_not_grow_forever(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_module, "PAIR_BYTES_MIN", 10_000)
    disk = DurableStore(tmp_path / "peer", ME)
    for number in range(500):
        disk.write(log(number % 50), b"s%d" % number)
        assert sum(map(len, contents(tmp_path / "peer").values())) < 4 * 10_000
    disk.close()
    assert disk.number == 500
    assert read(tmp_path / "peer") == (log(499 % 50), b"s499")


# ---- Truncated and flipped bytes -----------------------------------------------------------------------------

STATES = [(log(count), b"snapshot of %d" % (count // 4)) for count in range(1, 12)]


def damages(data, begin, end, chance):
    """Every truncation and flipped byte in data[begin:end], or a random sample."""
    places = [(place, bit) for place in range(begin, end) for bit in (None, *range(8))]
    for place, bit in places if SOAK else chance.sample(places, min(len(places), 30)):
        if bit is None:
            yield data[:place]
        else:
            yield data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def written_by_the_last(folder, states):
    """The file with the last save, its offset, and the state before it."""
    disk = DurableStore(folder, ME)
    for state in states[:-1]:
        disk.write(*state)
    before, state = contents(folder), (disk.raft_state, disk.snapshot)
    disk.write(*states[-1])
    disk.close()
    ((path, begin),) = [
        (path, len(before.get(path, b""))) for path, data in contents(folder).items() if data != before.get(path, b"")
    ]
    return path, begin, state


@pytest.mark.parametrize("count", [1, 2, 3, 4, 10, 11])
def test_torn_last_save_is_ignored_and_other_damage_refused(tmp_path, count):
    """1: the first of a new pair of files, before the old pair is deleted; 2: the second, after which it is."""
    folder = tmp_path / "peer"
    chance = random.Random(count)
    path, begin, before = written_by_the_last(folder, STATES[:count])
    files = contents(folder)
    assert read(folder) == STATES[count - 1]
    tried = 0
    for damaged in damages(files[path], begin, len(files[path]), chance):
        path.write_bytes(damaged)
        assert read(folder) == before
        restore(folder, files)
        tried += 1
    for other, data in files.items():
        for damaged in damages(data, 0, begin if other == path else len(data), chance):
            other.write_bytes(damaged)
            with pytest.raises(StoreError, match=str(other)):
                read(folder)
            restore(folder, files)
            tried += 1
    assert tried > (1000 if SOAK else 30)


def restore(folder, files):
    for path in contents(folder):
        if path not in files:
            path.unlink()
    for path, data in files.items():
        path.write_bytes(data)


def test_only_the_next_save_can_be_torn(tmp_path):
    folder = tmp_path / "peer"
    last, _, _ = written_by_the_last(folder, STATES)
    (other,) = [path for path in contents(folder) if path != last]
    files = contents(folder)
    other.write_bytes(files[other] + b"torn")  # the position of the next save
    assert read(folder) == STATES[-1]
    restore(folder, files)
    last.write_bytes(files[last] + b"torn")  # the position of the save after the next, which cannot have started
    with pytest.raises(StoreError, match=str(last)):
        read(folder)
    # Both last saves: a power failure cannot do that.
    for path in files:
        path.write_bytes(files[path][:-1])
    with pytest.raises(StoreError, match=f"{last}|{other}"):
        read(folder)


@pytest.mark.parametrize("gone", [".a", ".b"])
def test_missing_file_is_refused(tmp_path, gone):
    folder = tmp_path / "peer"
    saves(folder, *STATES)
    (path,) = [path for path in contents(folder) if path.suffix == gone]
    path.unlink()
    with pytest.raises(StoreError, match=str(path)):
        read(folder)


def test_repeated_torn_saves_are_ignored(tmp_path):
    """A power failure during a save, and after the restart during the next one."""
    folder = tmp_path / "peer"
    saves(folder, *STATES[:5])
    good = STATES[3]
    for _ in range(3):
        newest = max(contents(folder), key=lambda path: (path.stem, len(path.read_bytes())))
        newest.write_bytes(newest.read_bytes()[:-1])
        assert read(folder) == good
        disk = DurableStore(folder, ME)
        assert disk.torn or disk.number == 4
        disk.write(b"never acknowledged", b"")
        disk.close()
    newest.write_bytes(newest.read_bytes())
    assert read(folder)[0] == b"never acknowledged"


# ---- Ownership of the folder ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda folder: folder.mkdir(), "has no data of a peer .no owner.json.; choose another folder"),
        (lambda folder: folder.touch(), "is not a folder"),
        (
            lambda folder: DurableStore(folder, DataOwner(2, 3)).close(),
            "has the data of peer 2 of 3, not of peer 0 of 3",
        ),
        (
            lambda folder: emptied(folder),
            "the save files are missing: this peer may have lost votes or entries",
        ),
        (lambda folder: holding(folder), "is in use by another process; stop it first"),
    ],
)
def test_foreign_folder_is_refused(tmp_path, make, text):
    folder = tmp_path / "peer"
    kept = make(folder)
    with pytest.raises(StoreError, match=text) as refused:
        DurableStore(folder, ME)
    assert str(folder) in str(refused.value)
    assert not (folder / "lock").exists() or (folder / "owner.json").exists()
    if kept is not None:
        kept.close()


def emptied(folder):
    DurableStore(folder, ME).close()
    for path in contents(folder):
        path.unlink()


def holding(folder):
    return DurableStore(folder, ME)


# ---- Disk errors ---------------------------------------------------------------------------------------------


def test_full_disk_keeps_earlier_saves(tmp_path, monkeypatch):
    folder = tmp_path / "peer"
    disk = DurableStore(folder, ME)
    disk.write(*STATES[0])
    disk.write(*STATES[1])
    write, room = os.write, [40]

    def full(fd, data):
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(fd, bytes(data[: room[0]]))
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        disk.write(*STATES[2])
    monkeypatch.undo()
    disk.close()
    assert read(folder) == STATES[1]


def test_saves_survive_kill_9(tmp_path):
    """A process prints the number of each finished save, and is killed at a random time."""
    script = (
        "import sys; from pathlib import Path; from raftlab.cluster.durable_store import DurableStore, DataOwner\n"
        "disk = DurableStore(Path(sys.argv[1]), DataOwner(0, 3))\n"
        "for number in range(1, 10**9):\n"
        "    disk.write(b'%d ' % number * 50, b'')\n"
        "    print(number, flush=True)\n"
    )
    for _ in range(20 if SOAK else 2):
        folder = tmp_path / "peer"
        saver = subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, text=True)
        told = [saver.stdout.readline() for _ in range(random.Random().randint(20, 200))]
        saver.kill()
        told += saver.stdout.readlines()
        saver.wait()
        saver.stdout.close()
        acknowledged = int([line for line in told if line.endswith("\n")][-1])
        assert int(read(folder)[0].split()[0]) in (acknowledged, acknowledged + 1)
        shutil.rmtree(folder)
