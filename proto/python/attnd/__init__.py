"""attnd: a client of the attention server of that name.

Standard library, numpy and protobuf (3.21 or newer); no nng. Client opens a session; Buffer and
Tensor are memory shared with the daemon; Error is what a call raises.
"""

from .buffer import Buffer, Tensor
from .client import Client, Model, Pending, Table, runtime_dirs
from .dtype import bf16_bits, bf16_values, decode, encode
from .error import Error
from .spec import Group, Layer, ModelSpec, Rope

__all__ = [
    "Buffer",
    "Client",
    "Error",
    "Group",
    "Layer",
    "Model",
    "ModelSpec",
    "Pending",
    "Rope",
    "Table",
    "Tensor",
    "bf16_bits",
    "bf16_values",
    "decode",
    "encode",
    "runtime_dirs",
]
