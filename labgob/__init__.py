"""labgob: encodes values to bytes and decodes them, so that no two peers ever share an object.

    data = labgob.encode(RequestVoteArgs(term=3, candidate_id=1))
    args = labgob.decode(data, RequestVoteArgs)

Promise: a decoded value equals the encoded one and has the same type; otherwise encode() or decode() raises an error
that names the field. A value that cannot be encoded (a lock, an unregistered class in an `Any` field, an int over 64
bits) raises EncodeError at the sender; damaged or foreign bytes raise DecodeError. Decoding creates objects only of
classes that the type names or that are registered. One value has one encoding, in every process, for every hash seed.

Not promised: that a wrong value in a field annotated int, bool or bytes is rejected before it is decoded (checking
would double the cost of a small message); that a value keeps a class other than its annotation's (an int-valued enum in
an int field arrives as an int, a bytearray in a bytes field as bytes); that damage is detected if the bytes are still
valid (there is no checksum).

Start at encode() in _codec.py. _shapes.py says which values a field can hold, _registry.py which classes `Any` can.
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
