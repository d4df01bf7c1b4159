"""The workload of most tests of parts 3A and 3B: clients at work while servers are partitioned and crash.

Follows MIT's GenericTest. MIT's clients run for five seconds at full speed; these do a fixed number of operations with
small pauses, because in virtual time they would do fifty times as many. Written values are unique and none is a prefix
of another, so the history shows which client wrote what.

Start at `at_work()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labsim import random, time

if TYPE_CHECKING:
    from raftlab.harness.clients import Client
    from raftlab.harness.kv_config import KVConfig

ELECTION_S = 1.0  # a generous election timeout, as in the MIT tests
# As in MIT's lab: the saved Raft state may be this many times larger than max_raft_state.
LOG_SIZE_MAX = 8


def written(*of: object) -> str:
    """A unique value."""
    return f"x {' '.join(map(str, of))} y"


def at_work(
    make_kv_config: Any,
    part: str,
    *,
    clients: int,
    servers: int = 5,
    operations: int = 20,
    rounds: int = 3,
    pause_s: float = 0.05,
    unreliable: bool = False,
    crash: bool = False,
    partitions: bool = False,
    max_raft_state: int | None = None,
    random_keys: bool = False,
) -> KVConfig:
    """Each client appends to its own key and reads it; with `random_keys`, to random keys."""
    cfg: KVConfig = make_kv_config(servers=servers, unreliable=unreliable, max_raft_state=max_raft_state)
    what = [
        *(["unreliable net"] if unreliable else []),
        *(["restarts"] if crash else []),
        *(["partitions"] if partitions else []),
        *(["snapshots"] if max_raft_state is not None else []),
        *(["random keys"] if random_keys else []),
        f"{clients} clients" if clients > 1 else "one client",
    ]
    cfg.begin(f"Test ({part}): {', '.join(what)}")
    for round_ in range(rounds):

        def work(me: int, client: Client, round_: int = round_) -> None:
            own = f"{me}"
            if not random_keys:
                client.put(own, written("round", round_, me))
            for number in range(operations):
                key = str(random.randrange(clients)) if random_keys else own
                chance = random.random()
                if chance < 0.5:
                    client.append(key, written(me, round_, number))
                elif random_keys and chance < 0.6:
                    client.put(key, written(me, round_, number))
                else:
                    client.get(key)
                time.sleep(random.uniform(0, 2 * pause_s))

        clients_running = cfg.spawn_clients(clients, work)
        if partitions:
            time.sleep(random.uniform(0, ELECTION_S / 2))  # let the clients begin
            for _ in range(5):
                if clients_running.all_done:
                    break
                cut_in_two(cfg)
                time.sleep(ELECTION_S + random.uniform(0, 0.2))
            cfg.partition()
            time.sleep(ELECTION_S)
        if crash:
            if not partitions:
                time.sleep(random.uniform(0, operations * pause_s))
            restart_all(cfg)
        clients_running.finish()
        check_sizes(cfg, max_raft_state)
    read_all(cfg, clients)
    return cfg


def cut_in_two(cfg: KVConfig) -> None:
    """Put each server on a random side."""
    sides: tuple[list[int], list[int]] = ([], [])
    for i in range(cfg.n):
        sides[random.randrange(2)].append(i)
    cfg.partition(*sides)


def restart_all(cfg: KVConfig) -> None:
    for i in range(cfg.n):
        cfg.crash1(i)
    # Long enough that every request in flight is lost.
    time.sleep(ELECTION_S)
    cfg.restart(*range(cfg.n))


def read_all(cfg: KVConfig, keys: int) -> None:
    """Read each key once more, to detect lost appends."""
    client = cfg.make_client()
    for key in range(keys):
        client.get(str(key))


def check_sizes(cfg: KVConfig, max_raft_state: int | None) -> None:
    if max_raft_state is None:
        if cfg.snapshot_size() > 0:
            cfg.fail(
                f"max_raft_state is None, so there must be no snapshot, but there is one of {cfg.snapshot_size()} B"
            )
    elif cfg.log_size() > LOG_SIZE_MAX * max_raft_state:
        cfg.fail(
            f"The saved Raft state has grown to {cfg.log_size()} B, but max_raft_state is {max_raft_state}: the "
            f"service must take a snapshot before it is {LOG_SIZE_MAX} times that (§7)"
        )
