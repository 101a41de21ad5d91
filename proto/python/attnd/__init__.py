"""attnd: a client of the attention server of that name.

Standard library, numpy and protobuf (3.21 or newer); no nng. Client opens a session; Buffer and
Tensor are memory shared with the daemon; a Plan is a batch it has checked and keeps; Error is what
a call raises.
"""

from .buffer import Buffer, Tensor, map_named
from .call import LayerTensor, Partial, Table
from .client import Client, Model, Pending, runtime_dirs
from .dtype import bf16_bits, bf16_values, decode, encode
from .error import Error
from .plan import Plan
from .spec import Group, Layer, ModelSpec, Rope

__all__ = [
    "Buffer",
    "Client",
    "Error",
    "Group",
    "Layer",
    "LayerTensor",
    "Model",
    "ModelSpec",
    "Partial",
    "Pending",
    "Plan",
    "Rope",
    "Table",
    "Tensor",
    "bf16_bits",
    "bf16_values",
    "decode",
    "encode",
    "map_named",
    "runtime_dirs",
]
