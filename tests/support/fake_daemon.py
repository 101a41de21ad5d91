"""A stand-in for attnd in Python: the data and the buffer socket, replies as a test wants them.

It computes nothing. The framing is written anew from the protocol, not taken from the client.
"""

import array
import os
import queue
import shutil
import socket
import struct
import tempfile
import threading
import time

import attnd
import tap
from attnd import wire

SESSION = 0xA77D


class Peer:
    """One connection of the data socket, behind its greeting."""

    def __init__(self, sock):
        self.socket = sock
        self.frames = []  # whole frames received, header included

    def read(self, n):
        data = b""
        while len(data) < n:
            more = self.socket.recv(n - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def next(self):
        """(request id of the framing, Request)."""
        head = self.read(9)
        payload = self.read(struct.unpack(">Q", head[1:])[0])
        self.frames.append(head + payload)
        return struct.unpack(">I", payload[:4])[0], wire.Request.FromString(payload[4:])

    @staticmethod
    def frame(number, reply):
        payload = struct.pack(">I", number) + reply.SerializeToString()
        return b"\1" + struct.pack(">Q", len(payload)) + payload


class FakeDaemon:
    """with FakeDaemon() as daemon: attnd.Client(daemon.dir)

    on[op] = function(request, reply): fills the reply in; it is sent when the function returns
    true. held: queue of (peer, framing id, request) that it did not answer.
    """

    def __init__(self, greeting=b"\0SP\0\0\x31\0\0", backlog=16):
        self.dir = tempfile.mkdtemp(prefix="attnd-fake-")
        self.greeting = greeting  # None: nothing is sent; b"": closes at once
        self.on = {
            "hello": self.hello,
            "create_buffer": self.create_buffer,
            "create_plan": self.create_plan,
            "update_plan": self.update_plan,
        }
        self.held = queue.Queue()
        self.peers = []
        self.requests = []  # every Request, in the order received
        self.hellos = []  # the 8 bytes each client greets with
        self.leases = []  # connections of the buffer socket
        self.fd_requests = []
        self.fds = {}  # buffer -> descriptor
        self.fd_offset = 0
        self.fd_reply = None  # function(FdReply): changes what is answered
        self.n_surplus_fds = 0
        self.listeners = []
        self.listen("data", socket.SOCK_STREAM, self.serve_data, backlog)
        self.listen("buf", socket.SOCK_SEQPACKET, self.serve_buf, backlog)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for sock in self.listeners + [peer.socket for peer in self.peers] + self.leases:
            self.end(sock)
        for fd in self.fds.values():
            os.close(fd)
        shutil.rmtree(self.dir)

    @staticmethod
    def end(sock):
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        sock.close()

    def listen(self, name, kind, serve, backlog):
        sock = socket.socket(socket.AF_UNIX, kind)
        sock.bind(os.path.join(self.dir, name))
        sock.listen(backlog)
        self.listeners.append(sock)
        threading.Thread(target=self.accept, args=(sock, serve), daemon=True).start()

    def accept(self, listener, serve):
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self.guarded, args=(serve, sock), daemon=True).start()

    @staticmethod
    def guarded(serve, sock):
        try:
            serve(sock)
        except (EOFError, OSError):
            pass  # The client, or the test, closed it.

    # ---- The data socket -------------------------------------------------------------------------

    def serve_data(self, sock):
        peer = Peer(sock)
        self.peers.append(peer)
        self.hellos.append(peer.read(8))
        if self.greeting == b"":
            self.end(sock)
        elif self.greeting is not None:
            sock.sendall(self.greeting)
        while True:
            number, request = peer.next()
            self.requests.append(request)
            reply = wire.Reply(id=request.id, instance=1)
            reply.status.SetInParent()
            op = request.WhichOneof("op")
            if self.on.get(op, self.empty)(request, reply):
                sock.sendall(peer.frame(number, reply))
            else:
                self.held.put((peer, number, request))

    def hold(self, *_):
        return False

    @staticmethod
    def empty(request, reply):
        getattr(reply, request.WhichOneof("op")).SetInParent()
        return True

    @staticmethod
    def hello(request, reply):
        reply.hello.session = SESSION
        reply.hello.version = "0.0"
        reply.hello.ordinal = 3
        return True

    @staticmethod
    def create_plan(request, reply):
        reply.create_plan.plan = 66
        reply.create_plan.version = 1
        return True

    @staticmethod
    def update_plan(request, reply):
        reply.update_plan.version = request.update_plan.update.version + 1
        return True

    def create_buffer(self, request, reply):
        n = request.create_buffer.bytes
        reply.create_buffer.buffer = len(self.fds) + 1
        reply.create_buffer.bytes = n
        fd = os.memfd_create("fake", os.MFD_CLOEXEC)
        os.ftruncate(fd, self.fd_offset + n)
        self.fds[len(self.fds) + 1] = fd
        return True

    # ---- The buffer socket -----------------------------------------------------------------------

    def serve_buf(self, sock):
        self.leases.append(sock)
        while True:
            packet = sock.recv(1024)
            if not packet:
                return
            request = wire.FdRequest.FromString(packet)
            self.fd_requests.append(request)
            reply, beside = wire.FdReply(), []
            reply.status.SetInParent()
            if request.buffer:
                fd = self.fds[request.buffer]
                reply.kind = 1
                reply.bytes = os.fstat(fd).st_size - self.fd_offset
                reply.offset = self.fd_offset
                beside = [fd] * (1 + self.n_surplus_fds)
            if self.fd_reply and self.fd_reply(reply) is False:
                continue
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", beside))]
            sock.sendmsg([reply.SerializeToString()], rights if beside else [])


def client_of(daemon, timeout=10.0):
    return attnd.Client(daemon.dir, timeout=timeout)


def error_of(function, *args, **kwargs):
    """(code, reason, field, message) of the Error that function raises, and the seconds it took."""
    begin = time.monotonic()
    wrong = tap.raises(attnd.Error, function, *args, **kwargs)
    return (wrong.code, wrong.reason, wrong.field, wrong.message), time.monotonic() - begin


def waits_at_most(seconds, function, *args, **kwargs):
    got, took = error_of(function, *args, **kwargs)
    assert took < seconds, f"took {took:.1f} s"
    return got


def ping_reply(request):
    reply = wire.Reply(id=request.id, instance=1)
    reply.status.SetInParent()
    reply.ping.SetInParent()
    return reply


def refuse(code, reason, field, message):
    def on(request, reply):
        reply.status.code = code
        reply.status.reason = reason
        reply.status.field = field
        reply.status.message = message
        return True

    return on


def break_first(daemon, op, n=1):
    """The first n requests of an op break the connection they came over."""
    left = [n]

    def on(request, reply):
        if left[0]:
            left[0] -= 1
            daemon.end(daemon.peers[-1].socket)
            return False
        return daemon.empty(request, reply)

    daemon.on[op] = on


def kill(daemon):
    """Nobody listens any more, and all connections end."""
    for listener in daemon.listeners:
        daemon.end(listener)
    for sock in daemon.leases + [peer.socket for peer in daemon.peers]:
        daemon.end(sock)


def ids_of(daemon, op):
    return [request.id for request in daemon.requests if request.WhichOneof("op") == op]
