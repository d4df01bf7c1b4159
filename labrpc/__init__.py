"""labrpc: a simulated, unreliable network of remote procedure calls, after the MIT lab's.

    network = Network()
    server = Server()
    server.add_service(Service(Echo()))
    network.add_server("server", server)
    end = network.make_end("end")
    network.connect("end", "server")
    network.enable("end", True)
    reply = end.call("Echo.say", SayArgs("hello"))     # a SayReply, or None if it was lost

Start reading at network.py.
"""

from labrpc.errors import RpcError
from labrpc.message import Message
from labrpc.network import ClientEnd, Network
from labrpc.server import Server, Service

__all__ = ["ClientEnd", "Message", "Network", "RpcError", "Server", "Service"]
