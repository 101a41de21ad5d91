"""The session's way to the daemon: its connection and its lease, made anew once they break.

The daemon lets a session linger after its last connection has broken and answers a request id that
it has seen from memory, so what was in flight is sent once more, unchanged. The last connection of
a session that has ended, or of a daemon that is gone, is not made anew; every later call says so at
once.
"""

import itertools
import threading
import time
import weakref

from . import error, transport
from .buffer import FdSocket

RECONNECT_S = 1.0  # half of what the daemon lets a session linger: the repeats come in time
_AGAIN_S = 0.02


class Flight:
    """A request on its way, over one connection after the other. Dropping it drops the reply."""

    __slots__ = ("payload", "order", "connection", "call", "is_repeated", "__weakref__")

    def __init__(self, payload, order):
        self.payload = payload
        self.order = order
        self.connection = None
        self.call = None
        self.is_repeated = False


class Link:
    """One session's connection and lease. Any thread may make any call."""

    def __init__(self, data_path, buf_path, deadline):
        """Connects the data socket; Error as of transport.Connection."""
        self._data_path = data_path
        self._buf_path = buf_path
        self._session = 0
        self._instance = 0
        self._lease = None
        self._over = None  # the Error of every call, once the session has ended
        self._mending = threading.Lock()  # guards what is made anew; no other lock is held
        self._flights = weakref.WeakSet()
        self._flying = threading.Lock()  # guards _flights; innermost
        self._orders = itertools.count()
        self._connection = transport.Connection(data_path, deadline)

    def open(self, session, instance, deadline):
        """Takes the lease of a session; Error as of FdSocket."""
        self._lease = FdSocket(self._buf_path, session, deadline)
        self._session = session
        self._instance = instance

    @property
    def is_whole(self):
        """Is nothing known to be broken?"""
        lease_is_gone = self._lease is not None and self._lease.is_gone
        return not (self._over or lease_is_gone or self._connection.is_broken)

    def close(self):
        """Ends both connections; calls that wait, and all later ones, get UNAVAILABLE."""
        if self._over is None:
            self._over = error.broken(f"data = {self._data_path}: closed by this client")
        self._connection.close()
        if self._lease is not None:
            self._lease.close()

    # ---- Requests --------------------------------------------------------------------------------

    def send(self, payload, deadline):
        """Sends a request; its Flight."""
        if not self.is_whole:
            self._mend(deadline)
        flight = Flight(payload, next(self._orders))
        try:
            self._send(flight, self._connection, deadline)
        except error.Error as wrong:
            if wrong.reason != "RESTARTED" or not self._session:
                raise
            self._mend(deadline, wrong)
            self._send(flight, self._connection, deadline)
        with self._flying:
            self._flights.add(flight)
        return flight

    @staticmethod
    def _send(flight, connection, deadline):
        flight.call = connection.send(flight.payload, deadline)
        flight.connection = connection

    def wait(self, flight, deadline):
        """The bytes of the reply. Error DEADLINE_EXCEEDED (it may be waited for again), UNAVAILABLE
        when no connection brought it."""
        while True:
            connection, call = flight.connection, flight.call
            try:
                return connection.wait(call, deadline)
            except error.Error as wrong:
                if wrong.reason != "RESTARTED" or not self._session:
                    raise
                if flight.connection is connection and flight.is_repeated:
                    # It may be the request that breaks them.
                    raise
                self._mend(deadline, wrong, flight)

    def check(self, reply):
        """Ends the session when the reply says that the daemon knows nothing of it."""
        if not self._session:
            return
        if reply.instance != self._instance:
            self._end(
                error.Error(
                    "UNAVAILABLE",
                    "RESTARTED",
                    "instance",
                    f"instance = {reply.instance:016x}: the session was of {self._instance:016x}",
                )
            )
        if reply.status.reason == "UNREGISTERED":
            self._end(_ended(reply.status.message))

    def exchange(self, buffer, deadline):
        """(FdReply, descriptor) of a buffer, as of FdSocket."""
        try:
            return self._lease.exchange(buffer, deadline)
        except error.Error as wrong:
            if wrong.code != "UNAVAILABLE":
                raise
            self._mend(deadline, wrong)
        return self._lease.exchange(buffer, deadline)  # asking twice does no harm

    # ---- What broke ------------------------------------------------------------------------------

    def _end(self, wrong):
        self._over = self._over or wrong
        raise self._over

    def _mend(self, deadline, why=None, flight=None):
        """Makes anew what is broken and sends again what was in flight, flight in any case. Error
        UNAVAILABLE: why, or the text of the socket that is not to be had."""
        begin = time.monotonic()
        if not self._mending.acquire(timeout=max(0.0, deadline - begin)):
            raise error.timed_out("data", f"data = {self._data_path}: it is being connected anew")
        try:
            if self._over:
                raise self._over
            try:
                self._connect_anew(min(deadline, begin + RECONNECT_S), deadline)
            except error.Error as wrong:
                self._give_up(wrong, why, deadline - begin > RECONNECT_S)
            self._repeat(deadline, flight)
        finally:
            self._mending.release()

    def _give_up(self, wrong, why, was_in_time):
        if wrong.reason == "UNREGISTERED":
            self._end(_ended(wrong.message))
        if wrong.code != "UNAVAILABLE":
            raise wrong
        why = why or error.Error("UNAVAILABLE", "RESTARTED", wrong.field, wrong.message)
        if was_in_time and self._lease is not None and self._lease.is_gone:
            self._end(why)
        raise why

    def _connect_anew(self, until, deadline):
        """Tries until then, and has the deadline for each try: who is silent may only be slow."""
        if self._connection.is_broken:
            old = self._connection
            self._connection = _persist(
                lambda: transport.Connection(self._data_path, deadline), until
            )
            old.close()
        if self._lease is not None and self._lease.is_gone:
            old = self._lease
            self._lease = _persist(lambda: FdSocket(self._buf_path, self._session, deadline), until)
            old.close()

    def _repeat(self, deadline, flight):
        """Sends again, in their order, what was in flight over another connection."""
        with self._flying:
            flights = set(self._flights)
        if flight is not None:
            flights.add(flight)
        for one in sorted(flights, key=lambda one: one.order):
            is_cut = one.connection is not self._connection and one.connection.is_broken
            if not is_cut or one.is_repeated or one.call.reply is not None:
                continue
            one.is_repeated = True
            try:
                self._send(one, self._connection, deadline)
            except error.Error:
                if one is flight:
                    raise
                return  # It is cut off again, and those behind it are: each who waits mends anew.


def _ended(message):
    return error.Error("UNAVAILABLE", "RESTARTED", "session", message)


def _persist(make, until):
    """make(), again and again while nobody is there, until the time is up."""
    while True:
        try:
            return make()
        except error.Error as wrong:
            if wrong.code != "UNAVAILABLE" or time.monotonic() + _AGAIN_S > until:
                raise
        time.sleep(_AGAIN_S)
