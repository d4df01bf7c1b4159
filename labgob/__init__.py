"""Values to bytes and back, so that no two peers ever share an object.

    data = labgob.encode(RequestVoteArgs(term=3, candidate_id=1))
    args = labgob.decode(data, RequestVoteArgs)

Promise: what arrives equals what was sent and has the same type, or somebody gets an error that names the
field. What cannot travel (a lock, an unregistered class in an `Any` field, an int over 64 bits) is an
EncodeError where it is sent; damaged or foreign bytes are a DecodeError. Decoding builds only classes that
were named or registered. One value has one encoding, in every process and under every hash seed.

Not promised: that a wrong value in a field annotated int, bool or bytes is refused before it is decoded
(looking would double the price of a small message); that a look-alike keeps its class where the annotation
promises another (an int-valued enum in an int field arrives as the int, a bytearray in a bytes field as
bytes); that damage is noticed when it leaves a valid value (there is no checksum).

Start at encode() in _codec.py; _shapes.py knows what may travel in which field, _registry.py what classes an
`Any` may hold.
"""

from labgob._codec import Decoder, Encoder, decode, encode, forget
from labgob._errors import DecodeError, EncodeError, GobError
from labgob._registry import carries_unknown, carrying_unknown, register, separate

__all__ = [
    "DecodeError",
    "Decoder",
    "EncodeError",
    "Encoder",
    "GobError",
    "carries_unknown",
    "carrying_unknown",
    "decode",
    "encode",
    "forget",
    "register",
    "separate",
]
