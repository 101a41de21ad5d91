"""The client: one session of one daemon."""

import itertools
import math
import os
import time
from dataclasses import dataclass

import numpy as np

from . import error, spec, transport, wire
from .buffer import Buffer, FdSocket, Tensor, map_buffer

PROTOCOL = 1
_DROP_S = 2.0  # cleaning up waits no longer for a daemon that may be gone


def runtime_dirs(runtime_dir=None):
    """Where the daemon's sockets may lie, in the order they are looked for: runtime_dir alone when
    it is given, else $RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR/attnd, /run/attnd, /tmp/attnd-UID."""
    if runtime_dir is not None:
        return [os.fspath(runtime_dir)]
    dirs = []
    if os.environ.get("RUNTIME_DIRECTORY"):
        dirs.append(os.environ["RUNTIME_DIRECTORY"])
    if os.environ.get("XDG_RUNTIME_DIR"):
        dirs.append(os.path.join(os.environ["XDG_RUNTIME_DIR"], "attnd"))
    return dirs + ["/run/attnd", f"/tmp/attnd-{os.getuid()}"]


def _find_dir(runtime_dir):
    dirs = runtime_dirs(runtime_dir)
    if runtime_dir is not None:
        return dirs[0]
    for path in dirs:
        if os.path.exists(os.path.join(path, "data")):
            return path
    tried = ", ".join(os.path.join(path, "data") for path in dirs)
    raise error.unreachable("data", f"data = {tried}: no such socket; is attnd running?")


@dataclass
class Table:
    """Block ids of every sequence for one group of layers.

    block_ids  [sequences][width], a list of lists of any lengths, or a Tensor "i32" of one or two
               dimensions; -1: not held
    group      index into the model's groups; None: the group of the layer that is attended
    width      of a Tensor of one dimension: entries a sequence; 0: ceil(kv_len / block_size) each
    """

    block_ids: object
    group: int = None
    width: int = 0


class Model:
    """A model of the session, from Client.open_model().

    handle    its number on the wire
    pools     what was made, one a group: name, n_blocks, block_size, block_bytes, bytes
    n_layers  counts multiplied out
    """

    def __init__(self, reply, layers, close):
        self.handle = reply.model
        self.pools = list(reply.pools)
        self.n_layers = reply.n_layers
        self._groups = [layer.group for layer in layers for _ in range(layer.count or 1)]
        self._close = close

    def group_of(self, layer):
        """The group of a layer; 0 for a layer that does not exist, which the daemon refuses."""
        return self._groups[layer] if 0 <= layer < len(self._groups) else 0

    def close(self, timeout=None):
        """Gives the model and its pools back."""
        self._close(self, timeout)

    def __repr__(self):
        return f"<attnd.Model {self.handle}: {self.n_layers} layers>"


class Pending:
    """A request without its reply. Dropping it drops the reply, not the work.

    id  of the request: what a later one may name in after=
    """

    def __init__(self, connection, call, request_id, deadline):
        self.id = request_id
        self._connection = connection
        self._call = call
        self._deadline = deadline

    def wait(self, timeout=None):
        """The op's result, message of attnd.proto. timeout in seconds from now; None: what is left
        of the submitter's. Error DEADLINE_EXCEEDED when no reply came in time (it may be waited
        for again), UNAVAILABLE when the connection broke, else what the daemon answered."""
        deadline = self._deadline if timeout is None else time.monotonic() + timeout
        reply = wire.parse(wire.Reply, self._connection.wait(self._call, deadline), "reply")
        if reply.status.code:
            raise wire.status_error(reply.status)
        result = reply.WhichOneof("result")
        if reply.id != self.id or result is None:
            raise error.Error(
                "INTERNAL",
                "BROKEN",
                "reply.id",
                f"reply.id = {reply.id}: the result of request {self.id} was expected",
            )
        return getattr(reply, result)


class Client:
    """A session with the daemon.

        with attnd.Client() as client:
            model = client.open_model(attnd.ModelSpec([attnd.Layer(8, 64)], [attnd.Group(…)]))
            buffer = client.create_buffer(1 << 20)
            …

    Threads may share a client. Every call takes timeout, in seconds, None meaning the client's; the
    daemon gets the same deadline. Every call may raise attnd.Error: DEADLINE_EXCEEDED when no
    answer came in time, UNAVAILABLE as soon as the connection breaks and from then on (a new Client
    is a new session), and what its own text says.

    info  HelloReply: version, device, limits, features, models, ordinal
    """

    def __init__(self, runtime_dir=None, timeout=30.0, name="python"):
        """runtime_dir: the directory of the sockets; None: runtime_dirs() in order. name: for the
        daemon's logs and lists, at most 64 bytes. Error UNAVAILABLE names the path tried."""
        self.timeout = timeout
        self._ids = itertools.count(1)
        self._session = 0
        directory = _find_dir(runtime_dir)
        deadline = time.monotonic() + timeout
        self._connection = transport.Connection(os.path.join(directory, "data"), deadline)
        try:
            self.info = self._call("hello", {"protocol": PROTOCOL, "client": name}, timeout)
            self._session = self.info.session
            self._fds = FdSocket(os.path.join(directory, "buf"), self._session, deadline)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        # Without the session's number: it is the key to the session.
        return f"<attnd.Client: session {self.info.ordinal} of attnd {self.info.version}>"

    def close(self):
        """Ends the session and everything it holds. Never raises Error and takes two seconds at
        most; a second call does nothing."""
        self._drop("goodbye", {})
        self._fds.close()
        self._connection.close()

    # ---- Requests --------------------------------------------------------------------------------

    def _request(self, op, values):
        request = wire.Request(session=self._session)
        body = getattr(request, op)
        body.SetInParent()
        wire.fill(body, values)
        return request, body

    def _submit(self, request, timeout):
        timeout = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        request.timeout_ms = min(max(1, math.ceil(timeout * 1000)), 0xFFFFFFFF)
        request.id = next(self._ids)
        call = self._connection.send(request.SerializeToString(), deadline)
        return Pending(self._connection, call, request.id, deadline)

    def _call(self, op, values, timeout):
        return self._submit(self._request(op, values)[0], timeout).wait()

    def _drop(self, op, values):
        try:
            self._call(op, values, min(self.timeout, _DROP_S))
        except error.Error:
            pass  # What it holds goes with the lease in any case.

    def ping(self, timeout=None):
        """Seconds that a round trip took."""
        begin = time.monotonic()
        self._call("ping", {}, timeout)
        return time.monotonic() - begin

    # ---- Models and buffers ----------------------------------------------------------------------

    def open_model(self, model_spec, timeout=None):
        """Opens pools for a ModelSpec (or a mapping with its names) → Model. ValueError or
        TypeError for a name or type that attnd.proto does not have, Error for what the daemon
        refuses, with field "spec.layers[0].head_dim"."""
        request, body = self._request("open_model", {"spec": spec.mapping(model_spec)})
        reply = self._submit(request, timeout).wait()
        return Model(reply, body.spec.layers, self._close_model)

    def _close_model(self, model, timeout):
        self._call("close_model", {"model": model.handle}, timeout)

    def create_buffer(self, n_bytes, timeout=None):
        """Shared memory of n_bytes, mapped here → Buffer. Error with reason NO_ROOM when the
        session's quota has no room for it now, TOO_LARGE when it never has."""
        timeout = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        reply = self._call("create_buffer", {"bytes": n_bytes}, timeout)
        try:
            array = map_buffer(self._fds, reply.buffer, deadline)
        except BaseException:
            self._drop("free_buffer", {"buffer": reply.buffer})
            raise
        return Buffer(reply.buffer, array, self._free_buffer)

    def _free_buffer(self, buffer, timeout):
        self._call("free_buffer", {"buffer": buffer.handle}, timeout)

    # ---- Attention -------------------------------------------------------------------------------

    def attend(self, model, layer, *, timeout=None, **call):
        """One layer: append k and v, attend, write out; returns when out is written.

        model, layer  from open_model(); 0 .. model.n_layers-1
        q             Tensor [tokens][n_heads][head_dim], or [tokens][n_heads·head_dim]; without k
                      and v and with the rows [q | k | v]: fused
        k, v          Tensor [tokens][n_kv_heads][head_dim], […][head_dim_v]; None: nothing is
                      appended
        out           Tensor [tokens][n_heads][head_dim_v]; overlaps no input
        lse           Tensor "f32" [tokens][n_heads], natural log; None: not asked for
        stats         Tensor "f32" [tokens][n_heads][2], (m, l); None: not asked for
        q_lens        new tokens of each sequence; tokens of all are packed in the same order
        kv_lens       keys each sequence has, those that this call appends included
        tables        block ids: [sequences][width], lists of any lengths, a Table, or Tables
        n_contexts    sequences with many new tokens; they come first
        slots         [tokens] block·block_size + row where k and v go, -1: nowhere; None: the
                      tables say
        positions     [tokens] rotary positions; None: kv_len - q_len + i
        mask          "causal" (None), "full", …
        keys          "pool" (None): from the pool; "given": k and v are the keys, nothing is stored
        after         Pending of this client that must have been launched before
        batch_invariant  a row's bits do not depend on the other rows

        Integers are sequences, integer arrays or Tensor "i32". Returns AttendReply: queue_us,
        device_us. Raises ValueError or TypeError for what cannot be written as a message, Error for
        what the daemon refuses; then nothing was stored and out is as it was.
        """
        return self.submit(model, layer, timeout=timeout, **call).wait()

    def attend_many(self, calls, timeout=None):
        """Several attends in flight together: calls are mappings of attend()'s arguments → replies
        in the same order. They have no order among each other but what after says. The first Error
        is raised when all have ended."""
        pending = [self.submit(**{"timeout": timeout, **call}) for call in calls]
        replies, first = [], None
        for one in pending:
            try:
                replies.append(one.wait())
            except error.Error as wrong:
                first = first or wrong
        if first:
            raise first
        return replies

    def submit(
        self,
        model,
        layer,
        *,
        q,
        out,
        k=None,
        v=None,
        lse=None,
        stats=None,
        q_lens=None,
        kv_lens=None,
        tables=None,
        n_contexts=0,
        slots=None,
        positions=None,
        mask=None,
        keys=None,
        after=None,
        batch_invariant=None,
        timeout=None,
    ):
        """attend() without waiting: sends the request → Pending. The tensors belong to the daemon
        until the reply: q, k and v unchanged, out unread."""
        request, attend = self._request(
            "attend",
            {
                "model": model.handle,
                "layer": layer,
                "keys": keys,
                "batch_invariant": batch_invariant,
                "batch": {"n_contexts": n_contexts, "mask": mask},
            },
        )
        if after is not None:
            request.after = after.id
        tensors = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "stats": stats}
        for name, tensor in tensors.items():
            _fill_tensor(attend, name, tensor)
        batch = attend.batch
        arrays = {"q_lens": q_lens, "kv_lens": kv_lens, "slots": slots, "positions": positions}
        for name, values in arrays.items():
            if values is not None:
                _fill_ints(getattr(batch, name), values, name)
        for table in _tables(tables):
            _fill_table(batch.tables.add(), table, model.group_of(layer))
        return self._submit(request, timeout)


def _fill_tensor(attend, name, tensor):
    if tensor is None:
        return
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} = {type(tensor).__name__}: an attnd.Tensor, from Buffer.view()")
    tensor.fill(getattr(attend, name))


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


def _tables(tables):
    if tables is None:
        return []
    if isinstance(tables, Table):
        return [tables]
    if not isinstance(tables, (np.ndarray, Tensor)) and any(isinstance(t, Table) for t in tables):
        return tables
    return [Table(tables)]


def _fill_table(message, table, group):
    message.group = group if table.group is None else table.group
    ids, width = table.block_ids, table.width
    if isinstance(ids, Tensor):
        if len(ids.shape) == 2:
            width = ids.shape[1]
            ids = ids.flat()
    else:
        if not isinstance(ids, np.ndarray):
            ids = _rectangle(ids)
        if ids.ndim != 2:
            raise ValueError(f"tables = {ids.ndim} dimensions: [sequences][width]")
        width = ids.shape[1]
    message.width = width
    _fill_ints(message.block_ids, ids, "tables")


def _rectangle(lists):
    """Lists of any lengths as one array, filled up with -1 (not held)."""
    rows = [np.asarray(one) for one in lists]
    array = np.full((len(rows), max((len(row) for row in rows), default=0)), -1, dtype=np.int64)
    for i, row in enumerate(rows):
        if row.size and row.dtype.kind not in "iu":
            raise TypeError(f"tables[{i}] = {row.dtype}: integers")
        array[i, : len(row)] = row
    return array
