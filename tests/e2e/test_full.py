"""test_full.py: every socket with all its connections taken: by the silent, by the slow, by clients
in their right. Nobody is shut out by who asks nothing, nobody loses a session to who comes later, and
who cannot be let in is told so.
"""

import contextlib
import os
import re
import socket
import subprocess
import time
import urllib.request

from support import BUILD, Daemon, attnd

import tap

from raw import Raw, Session, message, refusal
from attnd import wire

NOFILE = 256  # so that 128 data connections and 32 buffer connections are all
N_DATA, N_BUFFER = NOFILE // 2, NOFILE // 8
LINE_S = 10  # of a line of the control socket, from its first byte to its end


def attnctl(*words):
    done = subprocess.run(
        [os.path.join(BUILD, "bin", "attnctl"), "--dir", daemon.dir, *words],
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.returncode, done.stdout, done.stderr


def dial(name, kind=socket.SOCK_STREAM):
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.settimeout(20)
    sock.connect(os.path.join(daemon.dir, name))
    return sock


def http(port):
    sock = socket.create_connection(("127.0.0.1", port), 20)
    sock.settimeout(20)
    return sock


def is_cut(sock):
    """Whether the daemon has hung up; what it said before is dropped."""
    try:
        while sock.recv(4096):
            pass
        return True
    except ConnectionError:
        return True
    except socket.timeout:
        return False


@contextlib.contextmanager
def held():
    """A list of sockets that are closed at the end."""
    socks = []
    try:
        yield socks
    finally:
        for sock in socks:
            sock.close()


def settle():
    """Returns when the daemon has heard that the last test's clients are gone."""
    fds = f"/proc/{daemon.process.pid}/fd"
    tap.until(lambda: len(os.listdir(fds)) < 40, "earlier connections are closed")


# ---- The control socket ----------------------------------------------------------------------------


@tap.test
def silent_and_slow_control_clients_shut_no_operator_out():
    with held() as socks:
        watch = subprocess.Popen(
            [os.path.join(BUILD, "bin", "attnctl"), "--dir", daemon.dir, "--json"]
            + ["stats", "--watch=0.2", "--count=10"],
            stdout=subprocess.PIPE,
        )
        watch.stdout.readline()
        for i in range(200):
            sock = dial("control")
            with contextlib.suppress(OSError):
                sock.sendall([b"", b"{", b"\n\n\n"][i % 3])
            socks.append(sock)
            if i % 20 == 19:
                tap.equal(attnctl("ping")[0], 0)
        tap.equal(len(watch.stdout.read().splitlines()), 9)
        tap.equal(watch.wait(), 0)
        assert daemon.counter("connections_displaced") >= 200 - 64
        tap.equal(daemon.counter("connections_refused"), 0)


@tap.test
def a_line_that_does_not_end_is_closed():
    begin = time.monotonic()
    idle, drip = dial("control"), dial("control")
    drip.settimeout(0.5)
    said = b""
    while not said.endswith(b"\n") and time.monotonic() < begin + 2 * LINE_S:
        drip.sendall(b"x")
        with contextlib.suppress(socket.timeout):
            said += drip.recv(4096)
    took = time.monotonic() - begin
    assert re.search(rb'"line = \d+ bytes: it has not ended in 10000 ms"', said), said
    assert LINE_S - 1 <= took < LINE_S + 5, took
    drip.settimeout(5)
    assert is_cut(drip)
    # One that has begun no line may be silent for as long as there is room.
    idle.sendall(b'{"jsonrpc":"2.0","id":1,"method":"server.ping"}\n')
    assert b"result" in idle.recv(4096)
    idle.close()


# ---- HTTP ------------------------------------------------------------------------------------------


@tap.test
def silent_and_half_asking_scrapers_shut_no_probe_out():
    port = int(re.search(r"http  address=\S+ port=(\d+)", daemon.log()).group(1))
    with held() as socks:
        for i in range(300):
            with contextlib.suppress(OSError):
                socks.append(http(port))
                socks[-1].sendall([b"", b"G", b"GET /metrics HTTP/1.1\r\nHost: x\r\n"][i % 3])
            if i % 30 == 29:
                begin = time.monotonic()
                for path in ("/healthz", "/metrics"):
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as page:
                        tap.equal(page.status, 200)
                assert time.monotonic() - begin < 5


# ---- The buffer socket -----------------------------------------------------------------------------


@tap.test
def a_buffer_socket_full_of_leases_keeps_them_and_tells_the_newcomer():
    with Session(daemon.dir) as session:
        handle = session.call("create_buffer", bytes=4096).create_buffer.buffer
        leases = [session.lease() for _ in range(N_BUFFER)]
        with held() as socks:
            for _ in range(200):
                socks.append(dial("buf", socket.SOCK_SEQPACKET))
            with Session(daemon.dir) as other:
                newcomer = dial("buf", socket.SOCK_SEQPACKET)
                reply, fd = other.ask(newcomer)
                status = reply.status
                tap.equal((status.reason, status.field, fd), ("NO_ROOM", "connections", -1))
                assert f"connections = {N_BUFFER}: the most at once" in status.message, status
                assert is_cut(newcomer)
                newcomer.close()
            wrong = tap.raises(attnd.Error, attnd.Client, daemon.dir)
            tap.equal((wrong.reason, wrong.field), ("NO_ROOM", "connections"))
            for lease in leases:
                tap.equal(len(session.fetch(lease, handle)), 4096)
            tap.equal(attnctl("ping")[0], 0)
        leases[0].close()

        def is_let_in():
            with contextlib.suppress(attnd.Error):
                attnd.Client(daemon.dir).close()
                return True
            return False

        tap.until(is_let_in, "the freed place is taken")


@tap.test
def silent_buffer_connections_make_room():
    settle()
    with held() as socks:
        for _ in range(5 * N_BUFFER):
            socks.append(dial("buf", socket.SOCK_SEQPACKET))
        with Session(daemon.dir) as session:
            session.lease()
        assert is_cut(socks[0])


# ---- The data socket -------------------------------------------------------------------------------


@tap.test
def a_data_socket_full_of_clients_keeps_them_and_tells_the_newcomer():
    ping = message("ping")
    with held() as clients, held() as silent:
        while len(clients) < N_DATA:
            clients.append(Raw(daemon.dir))
            clients[-1].exchange(ping)
        for _ in range(100):
            with contextlib.suppress(OSError):
                silent.append(Raw(daemon.dir))
        newcomer = Raw(daemon.dir)
        reply = newcomer.exchange(message("hello", protocol=1, client="late"))
        reason, text = refusal(reply)
        tap.equal(reason, "NO_ROOM")
        tap.equal(text, f"connections = {N_DATA}: the most at once on the data socket")
        assert is_cut(newcomer.sock)
        newcomer.close()
        wrong = tap.raises(attnd.Error, attnd.Client, daemon.dir)
        tap.equal((wrong.reason, wrong.field), ("NO_ROOM", "connections"))
        for client in clients:
            tap.equal(client.exchange(ping).status.code, 0)
        tap.equal(attnctl("ping")[0], 0)


@tap.test
def silent_data_connections_make_room():
    settle()
    with held() as silent:
        for _ in range(3 * N_DATA):
            silent.append(Raw(daemon.dir))
        with attnd.Client(daemon.dir) as client:
            client.create_buffer(4096)
        assert is_cut(silent[0].sock)


@tap.test
def nothing_is_left_of_all_this():
    def is_empty():
        return daemon.rpc("sessions.list")["sessions"] == []

    tap.until(is_empty, "all sessions have ended")
    settle()
    tap.equal(daemon.stop(), 0)


with Daemon("--http.address=127.0.0.1:0", nofile=NOFILE) as daemon:
    tap.main()
