"""nng's SP framing over AF_UNIX, spoken with the standard library: requests out, replies in.

On connect both sides send 00 'S' 'P' 00, their protocol (REQ 0x0030, REP 0x0031) and 00 00. Then
every message is 01, a 64-bit big-endian length and the payload; a request's payload begins with a
32-bit big-endian id whose top bit is set, and its reply begins with the same.

A deadline is a reading of time.monotonic(), in seconds.
"""

import itertools
import select
import socket
import struct
import threading
import time
import weakref

from . import error

_HELLO_REQ = b"\0SP\0\0\x30\0\0"
_HELLO_REP = b"\0SP\0\0\x31\0\0"
_HEADER = struct.Struct(">BQI")  # 1, bytes that follow the length, request id
_BEFORE_ID = 9
_MAX_FRAME = 64 << 20  # bytes; attnd's replies are far smaller


def _poll(sock, events, deadline):
    """Waits for events on sock; False at the deadline."""
    poller = select.poll()
    poller.register(sock, events)
    return bool(poller.poll(max(0.0, deadline - time.monotonic()) * 1000))


def connect(field, path, kind, deadline):
    """A connected, non-blocking AF_UNIX socket. Error UNAVAILABLE, or DEADLINE_EXCEEDED when nobody
    accepts, names the path as field's value."""
    sock = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
    try:
        # connect() waits while the backlog is full; on a non-blocking socket it would fail at once.
        left = max(0.001, deadline - time.monotonic())
        wait = struct.pack("@ll", int(left), int(left % 1 * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
        sock.connect(path)
        sock.setblocking(False)
    except BlockingIOError:
        sock.close()
        raise error.timed_out(field, f"{field} = {path}: attnd does not accept") from None
    except OSError as wrong:
        sock.close()
        why = wrong.strerror or str(wrong)
        raise error.unreachable(field, f"{field} = {path}: {why}; is attnd running?") from None
    return sock


class Call:
    """A request on its way; the connection puts the reply in as long as someone holds this."""

    __slots__ = ("reply", "__weakref__")

    def __init__(self):
        self.reply = None  # bytes, request id taken off


class Connection:
    """One connection to the data socket. Replies come in any order.

    Any thread may send and wait. Of the threads that wait one at a time reads the socket, for all.
    """

    def __init__(self, path, deadline):
        """Connects and exchanges hellos; Error UNAVAILABLE or DEADLINE_EXCEEDED names the path."""
        self._where = f"data = {path}"
        self._ids = itertools.count(1)
        self._sending = threading.Lock()  # guards the order of bytes sent; taken before _state
        self._state = threading.Condition()  # guards _reading, _why, _calls, replies
        self._reading = False
        self._why = None  # once it is broken: how
        self._calls = weakref.WeakValueDictionary()
        self._received = bytearray()
        self._socket = connect("data", path, socket.SOCK_STREAM, deadline)
        try:
            self._greet(deadline)
        except BaseException:
            self._socket.close()
            raise

    def _greet(self, deadline):
        hello, more = b"", b"any"
        try:
            self._socket.send(_HELLO_REQ)
            while len(hello) < len(_HELLO_REP) and more:
                if not _poll(self._socket, select.POLLIN, deadline):
                    raise error.timed_out("data", f"{self._where}: connected, but no greeting came")
                more = self._socket.recv(len(_HELLO_REP) - len(hello))
                hello += more
        except ConnectionError:
            more = b""
        if not more:
            raise error.unreachable("data", f"{self._where}: closed before its greeting")
        if hello != _HELLO_REP:
            raise error.unreachable(
                "data", f"{self._where}: greets with {hello.hex(' ')}: not an SP REP socket"
            )

    def send(self, payload, deadline):
        """Sends a request; its Call. Error DEADLINE_EXCEEDED when nothing of it was sent in time,
        UNAVAILABLE when the connection is or gets broken."""
        if not self._sending.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise error.timed_out("data", f"{self._where}: another request is still being sent")
        try:
            call = Call()
            number = 0x80000000 | (next(self._ids) & 0x7FFFFFFF)
            with self._state:
                self._raise_if_broken()
                self._calls[number] = call
            self._send_frame(_HEADER.pack(1, len(payload) + 4, number) + payload, deadline)
            return call
        finally:
            self._sending.release()

    def _send_frame(self, frame, deadline):
        rest = memoryview(frame)
        try:
            while rest:
                try:
                    rest = rest[self._socket.send(rest) :]
                except BlockingIOError:
                    if not _poll(self._socket, select.POLLOUT, deadline):
                        raise error.timed_out(
                            "data", f"{self._where}: attnd does not read"
                        ) from None
        except OSError as wrong:
            self._break(f"{self._where}: {wrong.strerror or wrong}; attnd is gone")
            self._raise_if_broken()
        except BaseException:
            if len(rest) < len(frame):
                # The rest cannot follow later: the next frame would be read as its tail.
                self._break(f"{self._where}: only a part of a request could be sent")
            raise

    def wait(self, call, deadline):
        """The bytes of call's reply. Error DEADLINE_EXCEEDED (call may be waited for again),
        UNAVAILABLE when the connection broke before the reply came. A deadline that has passed
        takes what has come."""
        has_read = False
        while True:
            with self._state:
                if call.reply is not None:
                    return call.reply
                self._raise_if_broken()
                left = deadline - time.monotonic()
                if left <= 0 and (has_read or self._reading):
                    raise error.timed_out("data", f"{self._where}: no reply in time")
                if self._reading:
                    self._state.wait(left)
                    continue
                self._reading = has_read = True
            try:
                self._read(deadline)
            finally:
                with self._state:
                    self._reading = False
                    self._state.notify_all()

    def _read(self, deadline):
        """Takes what has come, or waits for it, and hands replies to their calls."""
        if not _poll(self._socket, select.POLLIN, deadline):
            return
        try:
            more = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as wrong:
            self._break(f"{self._where}: {wrong.strerror or wrong}; attnd is gone")
            return
        if not more:
            self._break(f"{self._where}: attnd closed the connection or is gone")
            return
        self._received += more
        while len(self._received) >= _HEADER.size:
            kind, length, number = _HEADER.unpack_from(self._received)
            if kind != 1 or not 4 <= length <= _MAX_FRAME:
                self._break(
                    f"{self._where}: not an SP message: it starts with "
                    f"{bytes(self._received[:_BEFORE_ID]).hex(' ')}"
                )
                return
            end = _BEFORE_ID + length
            if len(self._received) < end:
                return
            reply = bytes(self._received[_HEADER.size : end])
            del self._received[:end]
            with self._state:
                call = self._calls.pop(number, None)
                if call is not None:
                    call.reply = reply

    @property
    def is_broken(self):
        """Is it known that the connection has ended? What waits to be read may say so."""
        return self._why is not None

    def _raise_if_broken(self):
        if self._why is not None:
            raise error.broken(self._why)

    def _break(self, why):
        with self._state:
            if self._why is None:
                self._why = why
            try:
                # Wakes a thread that polls it; close() would let the number be used again.
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            self._state.notify_all()

    def close(self):
        """Ends the connection; calls that wait get UNAVAILABLE."""
        self._break(f"{self._where}: closed by this client")
        with self._sending, self._state:
            while self._reading:
                self._state.wait()
            self._socket.close()
