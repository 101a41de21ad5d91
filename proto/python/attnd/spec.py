"""What a model is, as plain data. Field names, units and ranges are those of attnd.proto.

None (the default of most) leaves a field to the daemon. A mapping with the same names does as well:
open_model({"layers": [{"n_heads": 8, "head_dim": 64, "count": 32}], "groups": [{…}]}).
"""

from dataclasses import asdict, dataclass
from typing import List, Optional


@dataclass
class Rope:
    """Rotary embedding of a layer, done by attnd on q and on the keys it appends."""

    pairing: str = "neox"  # "neox": channels n and n + dim/2; "gptj": 2n and 2n + 1
    dim: Optional[int] = None  # channels that rotate; None: head_dim
    theta: Optional[float] = None  # None: 10000
    scaling: Optional[str] = None


@dataclass
class Layer:
    """One layer, or count equal ones in a row."""

    n_heads: int
    head_dim: int  # channels of q and k
    n_kv_heads: Optional[int] = None  # None: n_heads
    head_dim_v: Optional[int] = None  # channels of v and out; None: head_dim
    kind: Optional[str] = None  # "gqa" (the default), "mla", "cross", "encoder"
    group: Optional[int] = None  # index into ModelSpec.groups; None: 0
    sm_scale: Optional[float] = None  # factor on q·k; None: 1 / (q_scaling · sqrt(head_dim))
    q_scaling: Optional[float] = None
    window: Optional[int] = None  # keys a row sees, its own included
    rope: Optional[Rope] = None
    softcap: Optional[float] = None
    chunk: Optional[int] = None  # tokens
    count: Optional[int] = None


@dataclass
class Group:
    """Layers that share block ids: one pool. Give n_blocks or bytes."""

    kv_dtype: str  # "f32", "f16", "bf16"
    block_size: int  # tokens of a block, a power of two
    n_blocks: Optional[int] = None
    bytes: Optional[int] = None  # as many blocks as fit
    name: Optional[str] = None
    layout: Optional[str] = None  # "hnd" (the default), "nhd"
    max_kv_len: Optional[int] = None  # tokens a sequence may reach
    window: Optional[int] = None


@dataclass
class ModelSpec:
    layers: List[Layer]
    groups: List[Group]
    name: Optional[str] = None
    owner: Optional[str] = None  # who hands out blocks: "client" (the default) or "server"


def mapping(spec):
    """A ModelSpec as the mapping open_model() sends; a mapping comes back as it is."""
    return asdict(spec) if isinstance(spec, ModelSpec) else spec
