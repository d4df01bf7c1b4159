"""A clerk with one method for all operations, which starts with a random server."""

from kv.messages import Command
from labsim import random, time


class Clerk:
    def __init__(self, servers):
        self.servers = servers
        self.name = f"{random.getrandbits(64):x}"
        self.number = 0
        self.next = random.randrange(len(servers))

    def get(self, key):
        return self._do("get", key, "")

    def put(self, key, value):
        self._do("put", key, value)

    def append(self, key, value):
        self._do("append", key, value)

    def _do(self, verb, key, value):
        self.number += 1
        command = Command(verb, key, value, self.name, self.number)
        while True:
            answer = self.servers[self.next].call("KVServer.execute", command)
            if answer is not None and answer.done:
                return answer.value
            self.next = random.randrange(len(self.servers))
            time.sleep(0.005)
