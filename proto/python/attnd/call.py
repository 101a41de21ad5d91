"""Arguments of calls → messages: tensors, integers, tables, batches, updates of plans."""

from dataclasses import dataclass

import numpy as np

from . import wire
from .buffer import Tensor


@dataclass
class Table:
    """Block ids of every sequence for one group of layers.

    block_ids  [sequences][width], a list of lists of any lengths, or a Tensor "i32" of one or two
               dimensions; -1: not held
    group      index into the model's groups; None: the group of the layer that is attended, of a
               plan's tables their place in the list
    width      of a Tensor of one dimension: entries a sequence; 0: ceil(kv_len / block_size) each
    """

    block_ids: object
    group: int = None
    width: int = 0


class LayerTensor:
    """A tensor for each layer of a step, from a Tensor [layers][tokens][…].

    ring  the tensor's layers are used again and again, layer i of the step being [i mod layers];
          else it has one for each layer of the step

    first         Tensor of the first layer
    layer_stride  bytes from one layer to the next
    """

    def __init__(self, tensor, ring=False):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{type(tensor).__name__}: an attnd.Tensor, from Buffer.view()")
        if len(tensor.shape) < 2 or not tensor.shape[0]:
            raise ValueError(
                f"shape = {list(tensor.shape)}: [layers][tokens][…], one layer or more"
            )
        self.first = tensor[0]
        self.layer_stride = tensor.strides[0]
        self.n_layers = tensor.shape[0]
        self.ring = self.n_layers if ring else 0

    def fill(self, message):
        """Writes itself into a LayerTensor message of attnd.proto."""
        self.first.fill(message.first)
        message.layer_stride = self.layer_stride
        message.ring = self.ring


@dataclass
class Partial:
    """Attention of the same rows over one part of their keys: out, and lse or stats."""

    out: Tensor
    lse: Tensor = None
    stats: Tensor = None


def fill_tensor(message, name, tensor):
    """A field of message that is a Tensor; None leaves it unset. TypeError for another type."""
    if tensor is None:
        return
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} = {type(tensor).__name__}: an attnd.Tensor, from Buffer.view()")
    tensor.fill(getattr(message, name))


def fill_layers(message, name, tensor, n_layers):
    """A field of message that is a LayerTensor, of one or of a Tensor; None leaves it unset."""
    if tensor is None:
        return
    if not isinstance(tensor, LayerTensor):
        try:
            tensor = LayerTensor(tensor)
        except (TypeError, ValueError) as wrong:
            raise type(wrong)(f"{name}: {wrong}") from None
    if not tensor.ring and tensor.n_layers < n_layers:
        raise ValueError(f"{name} = {tensor.n_layers} layers: the step has {n_layers}")
    tensor.fill(getattr(message, name))


def fill_arrays(message, arrays):
    """Fields of message that are Ints, of sequences, integer arrays or Tensors; None: unset."""
    for name, values in arrays.items():
        if values is not None:
            _fill_ints(getattr(message, name), values, name)


def _fill_ints(message, values, where):
    if isinstance(values, Tensor):
        values.fill(message.ref)
        return
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{where} = {array.dtype}: integers")
    if array.size and not (-(1 << 31) <= array.min() and array.max() < 1 << 31):
        raise ValueError(f"{where} = {array.min()} .. {array.max()}: 32-bit integers")
    message.data = array.astype("<i4").tobytes()


def fill_tables(field, tables, name="tables", group=None):
    """A repeated field of Table messages, of a list of lists, an array, a Table, or Tables. group:
    of a Table that gives none; None: its place in the list."""
    for i, table in enumerate(_tables(tables)):
        _fill_table(field.add(), table, i if group is None else group, name)


def _tables(tables):
    if tables is None:
        return []
    if isinstance(tables, Table):
        return [tables]
    if not isinstance(tables, (np.ndarray, Tensor)) and any(isinstance(t, Table) for t in tables):
        return tables
    return [Table(tables)]


def _fill_table(message, table, group, name):
    message.group = group if table.group is None else table.group
    ids, width = table.block_ids, table.width
    if isinstance(ids, Tensor):
        if len(ids.shape) == 2:
            width = ids.shape[1]
            ids = ids.flat()
    else:
        if not isinstance(ids, np.ndarray):
            ids = _rectangle(ids, name)
        if ids.ndim != 2:
            raise ValueError(f"{name} = {ids.ndim} dimensions: [sequences][width]")
        width = ids.shape[1]
    message.width = width
    _fill_ints(message.block_ids, ids, name)


def _rectangle(lists, name):
    """Lists of any lengths as one array, filled up with -1 (not held)."""
    rows = [np.asarray(one) for one in lists]
    array = np.full((len(rows), max((len(row) for row in rows), default=0)), -1, dtype=np.int64)
    for i, row in enumerate(rows):
        if row.size and row.dtype.kind not in "iu":
            raise TypeError(f"{name}[{i}] = {row.dtype}: integers")
        array[i, : len(row)] = row
    return array


BATCH = ("q_lens", "kv_lens", "tables", "n_contexts", "slots", "positions", "mask")


def fill_batch(batch, values, group=None):
    """A Batch message of the arguments that BATCH names; what is not there is unset."""
    wire.fill(batch, {name: values.get(name) for name in ("n_contexts", "mask")}, "batch")
    fill_arrays(
        batch, {name: values.get(name) for name in ("q_lens", "kv_lens", "slots", "positions")}
    )
    fill_tables(batch.tables, values.get("tables"), group=group)


UPDATE = ("q_lens", "kv_lens", "appended", "slots", "positions")


def fill_update(message, values):
    """A PlanUpdate message of the arguments that UPDATE names; what is not there is unset."""
    for name in values:
        if name not in UPDATE:
            raise ValueError(f"update.{name}: one of {', '.join(UPDATE)}")
    fill_arrays(message, {name: values.get(name) for name in UPDATE if name != "appended"})
    fill_tables(message.appended, values.get("appended"), "appended")


def fill_partial(message, partial, where):
    """A Partial message of a Partial, or of a pair (out, lse)."""
    if not isinstance(partial, Partial):
        partial = Partial(*partial)
    try:
        for name in ("out", "lse", "stats"):
            fill_tensor(message, name, getattr(partial, name))
    except TypeError as wrong:
        raise TypeError(f"{where}.{wrong}") from None
