"""All operations are one RPC and objects in the log; a handler polls the clock and is never notified."""

import labgob
from kv.messages import Answer, Command
from labsim import queue, threading, time


class KVServer:
    def __init__(self, servers, me, raft, apply_ch, persister, max_raft_state):
        self.raft, self.apply_ch, self.persister, self.limit = raft, apply_ch, persister, max_raft_state
        self.lock = threading.RLock()
        self.stopped = False
        self.values = {}
        self.latest = {}  # by client: number and answer of its latest request
        self._load(persister.read_snapshot())
        threading.Thread(target=self._run, daemon=True).start()

    def execute(self, args: Command) -> Answer:
        if not self.raft.get_state()[1]:
            return Answer(False)
        _, term, leads = self.raft.start(args)
        until = time.time() + 0.8
        while leads and time.time() < until and not self.stopped:
            with self.lock:
                number, value = self.latest.get(args.who, (0, ""))
                if number >= args.number:
                    return Answer(True, value)
            if self.raft.get_state()[0] != term:
                break
            time.sleep(0.010)
        return Answer(False)

    def kill(self):
        self.stopped = True

    def _run(self):
        while not self.stopped:
            try:
                msg = self.apply_ch.get(timeout=0.5)
            except queue.Empty:
                continue
            with self.lock:
                if msg.snapshot_valid:
                    self._load(msg.snapshot)
                    continue
                self._do(msg.command)
                if self.limit is not None and self.persister.raft_state_size() >= self.limit * 2:
                    self.raft.snapshot(msg.command_index, labgob.encode([self.values, self.latest]))

    def _do(self, command):
        if self.latest.get(command.who, (0, ""))[0] >= command.number:
            return
        if command.verb == "put":
            self.values[command.key] = command.value
        elif command.verb == "append":
            self.values[command.key] = self.values.get(command.key, "") + command.value
        told = self.values.get(command.key, "") if command.verb == "get" else ""
        self.latest[command.who] = (command.number, told)

    def _load(self, snapshot):
        if snapshot:
            self.values, latest = labgob.decode(snapshot, list)
            self.latest = {who: tuple(told) for who, told in latest.items()}
