"""What tests speak when the Python client is too polite: plain sockets and messages made by hand.

session = Session(daemon.dir)
reply = session.call("create_buffer", bytes=4096)
"""

import array
import itertools
import mmap
import os
import socket
import struct

from support import attnd

import numpy as np
import tap

from attnd import wire

GREETING = bytes.fromhex("0053500000300000")
ANSWER = bytes.fromhex("0053500000310000")
N_HEADS, DIM, T = 1, 8, 4  # of Session.open_model()'s layers, and tokens of a block
ROW = N_HEADS * DIM * 4  # bytes of a token's q, k, v or out


def message(op, session=0, id=0, after=0, timeout_ms=0, **fields):
    """A Request with fields in its op."""
    request = wire.Request(session=session, id=id, after=after, timeout_ms=timeout_ms)
    body = getattr(request, op)
    body.SetInParent()
    wire.fill(body, fields)
    return request


def tensor(buffer, offset, shape=(1, N_HEADS, DIM)):
    return {"buffer": buffer, "offset": offset, "dtype": "f32", "shape": list(shape)}


def refusal(reply):
    """(reason, text) of a reply that is one, whose field must be what its text begins with."""
    status = reply.status
    assert status.code, "it was not refused"
    assert reply.WhichOneof("result") is None, reply
    assert status.message.startswith(status.field) and status.field, status
    return status.reason, status.message


def ok(reply):
    """The result of a reply that is one."""
    assert not reply.status.code, reply.status
    return getattr(reply, reply.WhichOneof("result"))


class Raw:
    """A connection of the data socket that sends any bytes."""

    def __init__(self, directory, seconds=20):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(seconds)
        self.sock.connect(os.path.join(directory, "data"))
        self.sock.sendall(GREETING)
        tap.equal(self._read(len(ANSWER)), ANSWER)
        self.number = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _read(self, n):
        data = b""
        while len(data) < n:
            part = self.sock.recv(n - len(data))
            if not part:
                raise ConnectionResetError("closed")
            data += part
        return data

    def send(self, request):
        """Sends a Request, or bytes in its place → its number on this connection."""
        payload = request if isinstance(request, bytes) else request.SerializeToString()
        self.number += 1
        head = struct.pack(">BQI", 1, len(payload) + 4, 0x80000000 | self.number)
        self.sock.sendall(head + payload)
        return self.number

    def receive(self):
        """The next reply → (number of its request, Reply)."""
        size = struct.unpack(">Q", self._read(9)[1:])[0]
        body = self._read(size)
        number = struct.unpack(">I", body[:4])[0] & 0x7FFFFFFF
        return number, wire.Reply.FromString(body[4:])

    def exchange(self, request):
        """Sends a Request, or bytes, with none in flight → the Reply."""
        sent = self.send(request)
        number, reply = self.receive()
        tap.equal(number, sent)
        return reply

    def close(self):
        self.sock.close()


class Session:
    """A session with one data connection; a buffer connection only where a test takes one.

    number  the session's
    raw     the data connection
    """

    def __init__(self, directory, name="raw"):
        self.directory = directory
        self.ids = itertools.count(1)
        self.leases = []
        self.raw = Raw(directory)
        self.hello = ok(self.raw.exchange(message("hello", protocol=1, client=name)))
        self.number = self.hello.session
        self.model = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.leave()
        self.raw.close()
        for lease in self.leases:
            lease.close()

    def leave(self):
        """Goodbye, if the connection is still there; replies that nobody took are dropped."""
        try:
            sent = self.raw.send(self.request("goodbye", id=0))
            while self.raw.receive()[0] != sent:
                pass
        except OSError:
            pass

    def request(self, op, **fields):
        """A Request of this session with a new id, unless id is given."""
        if "id" not in fields:
            fields["id"] = next(self.ids)
        return message(op, session=self.number, **fields)

    def send(self, op, **fields):
        """Sends it on the data connection; the Request."""
        request = self.request(op, **fields)
        self.raw.send(request)
        return request

    def call(self, op, **fields):
        return self.raw.exchange(self.request(op, **fields))

    def connect(self):
        """Another data connection in place of the first, which closes."""
        self.raw.close()
        self.raw = Raw(self.directory)

    def ask(self, lease, buffer=0):
        """One exchange on a buffer connection → (FdReply, descriptor or -1)."""
        lease.send(wire.FdRequest(session=self.number, buffer=buffer).SerializeToString())
        packet, control, _, _ = lease.recvmsg(1024, socket.CMSG_SPACE(4))
        fds = array.array("i")
        for _, _, data in control:
            fds.frombytes(data)
        return wire.FdReply.FromString(packet), fds[0] if fds else -1

    def lease(self):
        """A connection of the buffer socket that holds the session."""
        lease = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lease.settimeout(20)
        lease.connect(os.path.join(self.directory, "buf"))
        tap.equal(self.ask(lease)[0].status.message, "")
        self.leases.append(lease)
        return lease

    def fetch(self, lease, buffer):
        """A buffer's bytes, a uint8 array."""
        reply, fd = self.ask(lease, buffer)
        tap.equal(reply.status.message, "")
        memory = mmap.mmap(fd, reply.bytes)
        os.close(fd)
        return np.frombuffer(memory, np.uint8)

    def open_model(self, n_blocks=8):
        """A model of one layer whose every token sees its own key alone when kv_len is 1."""
        self.model = ok(
            self.call(
                "open_model",
                spec={
                    "name": "m",
                    "layers": [{"n_heads": N_HEADS, "head_dim": DIM}],
                    "groups": [
                        {"block_size": T, "kv_dtype": "f32", "n_blocks": n_blocks, "name": "main"}
                    ],
                },
            )
        ).model
        return self.model

    def store(self, buffer, at, block, **fields):
        """Request of one token: q, k, v, out from byte `at` of the buffer, k and v to the first row
        of the block."""
        names = ("q", "k", "v", "out")
        tensors = {name: tensor(buffer, at + i * ROW) for i, name in enumerate(names)}
        return self.request("attend", model=self.model, batch=one_row(block), **tensors, **fields)

    def load(self, buffer, at, block, **fields):
        """Request that reads that row: out, at byte `at` + ROW, is the v stored."""
        tensors = {"q": tensor(buffer, at), "out": tensor(buffer, at + ROW)}
        return self.request("attend", model=self.model, batch=one_row(block), **tensors, **fields)


def one_row(block):
    one = np.ones(1, "<i4").tobytes()
    table = {"block_ids": {"data": np.array([block], "<i4").tobytes()}}
    return {"q_lens": {"data": one}, "kv_lens": {"data": one}, "tables": [table]}
