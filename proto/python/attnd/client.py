"""The client: one session of one daemon."""

import itertools
import math
import os
import time

from . import call as calls
from . import error, spec, wire
from .buffer import Buffer, map_buffer, map_named
from .link import Link
from .plan import Plan

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

    def __init__(self, link, flight, request_id, deadline, on_refused):
        self.id = request_id
        self._link = link
        self._flight = flight
        self._deadline = deadline
        self._on_refused = on_refused

    def wait(self, timeout=None):
        """The op's result, message of attnd.proto. timeout in seconds from now; None: what is left
        of the submitter's. Error DEADLINE_EXCEEDED when no reply came in time (it may be waited
        for again), UNAVAILABLE when the connection broke and the request could not be repeated
        over another, else what the daemon answered."""
        return result_of(self.reply(timeout), self.id)

    def reply(self, timeout=None):
        """wait() for the whole Reply."""
        deadline = self._deadline if timeout is None else time.monotonic() + timeout
        reply = wire.parse(wire.Reply, self._link.wait(self._flight, deadline), "reply")
        self._link.check(reply)
        if reply.status.code:
            self._on_refused()
            raise wire.status_error(reply.status)
        return reply


def result_of(reply, request_id):
    """The result in a Reply; Error BROKEN when it is the reply to another request."""
    result = reply.WhichOneof("result")
    if reply.id != request_id or result is None:
        raise error.Error(
            "INTERNAL",
            "BROKEN",
            "reply.id",
            f"reply.id = {reply.id}: the result of request {request_id} was expected",
        )
    return getattr(reply, result)


class Client:
    """A session with the daemon.

        with attnd.Client() as client:
            model = client.open_model(attnd.ModelSpec([attnd.Layer(8, 64)], [attnd.Group(…)]))
            buffer = client.create_buffer(1 << 20)
            …

    Threads may share a client. Every call takes timeout, in seconds, None meaning the client's; the
    daemon gets the same deadline. A connection that breaks is made anew, which is tried for a
    second, within the call's timeout; the session goes on, and what was in flight is sent once more
    under the same id, which the daemon does not carry out twice. Every call may raise attnd.Error:
    DEADLINE_EXCEEDED when no answer came in time, UNAVAILABLE when the daemon is not to be had
    again or knows nothing of the session, and then from every later call (a new Client is a new
    session), and what its own text says.

    info  HelloReply: version, device, limits, features, models, ordinal
    """

    def __init__(self, runtime_dir=None, timeout=30.0, name="python"):
        """runtime_dir: the directory of the sockets; None: runtime_dirs() in order. name: for the
        daemon's logs and lists, at most 64 bytes. Error UNAVAILABLE names the path tried."""
        self.timeout = timeout
        self._ids = itertools.count(1)
        self._session = 0
        self._max_bytes = 0  # of a request; the daemon has not said yet
        directory = _find_dir(runtime_dir)
        deadline = time.monotonic() + timeout
        paths = (os.path.join(directory, socket) for socket in ("data", "buf"))
        self._link = Link(*paths, deadline)
        try:
            request, _ = self._request("hello", {"protocol": PROTOCOL, "client": name})
            pending = self._submit(request, timeout)
            reply = pending.reply()
            self.info = result_of(reply, pending.id)
            self._session = self.info.session
            # The frame has a number of four bytes. 0: the daemon names no limit.
            self._max_bytes = max(self.info.limits.max_message_bytes - 4, 0)
            self._link.open(self._session, reply.instance, deadline)
        except BaseException:
            self._link.close()
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
        if self._link.is_whole:  # else the session ends by itself
            self._drop("goodbye", {})
        self._link.close()

    # ---- Requests --------------------------------------------------------------------------------

    def _request(self, op, values):
        request = wire.Request(session=self._session)
        body = getattr(request, op)
        body.SetInParent()
        wire.fill(body, values)
        return request, body

    def _submit(self, request, timeout, on_refused=lambda: None):
        timeout = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        request.timeout_ms = min(max(1, math.ceil(timeout * 1000)), 0xFFFFFFFF)
        request.id = next(self._ids)
        try:
            message = request.SerializeToString()
            if self._max_bytes and len(message) > self._max_bytes:
                # The daemon hangs up on it, which would look as if it were gone.
                raise error.Error(
                    "INVALID_ARGUMENT",
                    "TOO_LARGE",
                    "request",
                    f"request = {len(message)} bytes: at most {self._max_bytes} (data.max_message); "
                    "integers may lie in a buffer",
                )
            flight = self._link.send(message, deadline)
        except error.Error:
            on_refused()
            raise
        return Pending(self._link, flight, request.id, deadline, on_refused)

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

    def create_buffer(self, n_bytes, timeout=None, named=False):
        """Shared memory of n_bytes, mapped here → Buffer; memory of the GPU when the daemon computes on
        one, and an Error with reason UNSUPPORTED where this process has no NVIDIA driver. Error with reason NO_ROOM when the
        session's quota has no room for it now, TOO_LARGE when it never has.

        named: it is also a POSIX shared memory object, by which it is mapped here too, without a
        descriptor, and may be by any process of this user that cannot take one (map_named()). The
        daemon unlinks it with the buffer. Nobody else may, or truncate it: the next access to a page
        that is gone kills whoever makes it, the daemon included. It does not outlive an engine that
        is started again. Error UNREACHABLE where the daemon's objects are not to be seen."""
        timeout = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        reply = self._call("create_buffer", {"bytes": n_bytes, "named": named}, timeout)
        is_device = False
        try:
            if named:
                array = map_named(reply.shm_name, reply.bytes)
            else:
                array, is_device = map_buffer(self._link, reply.buffer, deadline)
        except BaseException:
            self._drop("free_buffer", {"buffer": reply.buffer})
            raise
        return Buffer(reply.buffer, array, self._free_buffer, reply.shm_name or None, is_device)

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
        plan          from create_plan(): takes the place of q_lens, kv_lens, tables, n_contexts,
                      slots, positions, mask

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
        plan=None,
        keys=None,
        after=None,
        batch_invariant=None,
        timeout=None,
        **batch,
    ):
        """attend() without waiting: sends the request → Pending. The tensors belong to the daemon
        until the reply: q, k and v unchanged, out unread."""
        _check_names("attend", batch, calls.BATCH)
        request, attend = self._request(
            "attend",
            {
                "model": model.handle,
                "layer": layer,
                "keys": keys,
                "batch_invariant": batch_invariant,
            },
        )
        tensors = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "stats": stats}
        for name, tensor in tensors.items():
            calls.fill_tensor(attend, name, tensor)
        if plan is None:
            attend.batch.SetInParent()
            calls.fill_batch(attend.batch, batch, model.group_of(layer))
        elif batch:
            raise ValueError(
                f"plan = {plan}: {next(iter(batch))} is given too, the plan has its own"
            )
        else:
            attend.plan = plan.handle
        return self._submit(_behind(request, after), timeout)

    # ---- Plans and steps -------------------------------------------------------------------------

    def create_plan(self, model, *, batch_invariant=None, timeout=None, **batch):
        """A batch, checked once, for all layers of the groups that its tables name → Plan.

        q_lens, kv_lens, tables, n_contexts, slots, positions, mask, batch_invariant: as of
        attend(). A list of block ids is of group 0; a Table without a group is of that of its place
        in the list. The plan lives until it is dropped, or with the session:

            with client.create_plan(model, q_lens=[1], kv_lens=[7], tables=[[9, 2]]) as plan:
                for layer in range(model.n_layers):
                    client.attend(model, layer, plan=plan, q=…, k=…, v=…, out=…)
                plan.update(kv_lens=[8])
        """
        _check_names("create_plan", batch, calls.BATCH)
        request, body = self._request(
            "create_plan", {"model": model.handle, "batch_invariant": batch_invariant, "batch": {}}
        )
        calls.fill_batch(body.batch, batch)
        reply = self._submit(request, timeout).wait()
        return Plan(reply, model, self._submit_update, self._drop_plan)

    def _submit_update(self, plan, values, after, timeout):
        request, body = self._request("update_plan", {})
        on_refused = plan.fill_update(body.update, values)
        return self._submit(_behind(request, after), timeout, on_refused)

    def _drop_plan(self, plan, timeout):
        self._call("drop_plan", {"plan": plan.handle}, timeout)

    def step(self, plan, first_layer, n_layers, *, timeout=None, **call):
        """Layers first_layer .. first_layer + n_layers - 1 of a plan, in order, as attend() would
        do one by one; returns when all outputs are written.

        q, k, v, out, lse  as of attend(), with the layers in front: Tensor [layers][tokens][…] with
                           one for each layer of the step, or a LayerTensor, which may be a ring
        update             a mapping of Plan.update()'s arguments, applied first; None: none
        keys, after        as of attend()

        Returns StepReply: queue_us, device_us, version of the plan. Raises as attend() and
        Plan.update(); after a refusal no layer has run.
        """
        return self.submit_step(plan, first_layer, n_layers, timeout=timeout, **call).wait()

    def submit_step(
        self,
        plan,
        first_layer,
        n_layers,
        *,
        q,
        out,
        k=None,
        v=None,
        lse=None,
        update=None,
        keys=None,
        after=None,
        timeout=None,
    ):
        """step() without waiting: sends the request → Pending. The tensors belong to the daemon
        until the reply."""
        request, step = self._request(
            "step",
            {
                "plan": plan.handle,
                "first_layer": first_layer,
                "n_layers": n_layers,
                "keys": keys,
            },
        )
        tensors = {"q": q, "k": k, "v": v, "out": out, "lse": lse}
        for name, tensor in tensors.items():
            calls.fill_layers(step, name, tensor, n_layers)
        _behind(request, after)
        if update is None:
            return self._submit(request, timeout)
        return self._submit(request, timeout, plan.fill_update(step.update, update))

    # ---- Merging ---------------------------------------------------------------------------------

    def merge(self, partials, *, out, lse=None, stats=None, after=None, timeout=None):
        """Attention over disjoint parts of the keys → attention over all of them, merged in order.

        partials    Partials, or pairs (out, lse), of one shape
        out         Tensor [tokens][n_heads][width]; overlaps no input
        lse, stats  as of attend(); None: not asked for
        after       Pending of this client that must have been launched before

        Returns MergeReply: queue_us, device_us.
        """
        request, merge = self._request("merge", {})
        for i, partial in enumerate(partials):
            calls.fill_partial(merge.partials.add(), partial, f"partials[{i}]")
        for name, tensor in {"out": out, "lse": lse, "stats": stats}.items():
            calls.fill_tensor(merge, name, tensor)
        return self._submit(_behind(request, after), timeout).wait()


def _behind(request, after):
    if after is not None:
        request.after = after.id
    return request


def _check_names(function, values, names):
    for name in values:
        if name not in names:
            raise TypeError(
                f"{function}(): {name}: no such argument; of a batch: {', '.join(names)}"
            )
