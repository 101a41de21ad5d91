"""test_named.py: buffers with a name, for clients that cannot take a descriptor: POSIX shared memory
objects that live as long as their buffer and never longer than their daemon by much."""

import os
import signal
import subprocess
import sys
import time

from support import BUILD, Daemon, attnd, error_of, freeze

import numpy as np
import tap

from raw import DIM, ROW, Session, ok, refusal

SHM = "/dev/shm"
PREFIX = "attnd-shm-"
daemon = None


def objects():
    """Those of our daemons, of whatever test."""
    return {name for name in os.listdir(SHM) if name.startswith(PREFIX)}


def create(session, n=4096):
    """(handle, path) of a named buffer."""
    made = ok(session.call("create_buffer", bytes=n, named=True))
    assert made.shm_name.startswith(f"/{PREFIX}"), made.shm_name
    return made.buffer, SHM + made.shm_name


def gone(path, seconds=5):
    tap.until(lambda: not os.path.exists(path), "the object is unlinked", seconds)


@tap.test
def a_session_without_descriptors_attends_through_a_named_buffer():
    with Session(daemon.dir) as session:
        assert "buffer.named" in session.hello.features
        session.open_model()
        buffer, path = create(session, 8 * ROW + 1)
        at = os.stat(path)
        tap.equal((at.st_mode & 0o777, at.st_uid), (0o600, os.geteuid()))
        memory = np.memmap(path, "<f4", "r+", shape=(8, DIM))
        tap.equal(float(np.abs(memory).max()), 0.0)
        memory[:] = np.arange(8)[:, None]
        ok(session.raw.exchange(session.store(buffer, 0, 5)))
        ok(session.raw.exchange(session.load(buffer, 6 * ROW, 5)))
        tap.equal(memory[7].tolist(), [2.0] * DIM)
        assert session.leases == []
        listed = daemon.rpc("buffers.list")["buffers"]
        tap.equal([one["bytes"] for one in listed], [str(8 * ROW + 1)])
        assert PREFIX not in str(listed) and PREFIX not in daemon.log()
        ok(session.call("free_buffer", buffer=buffer))
        assert not os.path.exists(path), "it outlives its buffer"
        memory[:] = 1.0  # whoever maps it keeps it


@tap.test
def its_descriptor_may_be_fetched_too():
    with Session(daemon.dir) as session:
        buffer, path = create(session)
        fetched = session.fetch(session.lease(), buffer)
        np.memmap(path, "u1", "r+")[7] = 9
        tap.equal(int(fetched[7]), 9)


@tap.test
def a_buffer_that_did_not_ask_has_no_name():
    with Session(daemon.dir) as session:
        before = objects()
        tap.equal(ok(session.call("create_buffer", bytes=64)).shm_name, "")
        tap.equal(objects(), before)


@tap.test
def it_goes_with_the_session_however_that_ends():
    with Session(daemon.dir) as session:
        path = create(session)[1]
        ok(session.call("goodbye"))
        assert not os.path.exists(path), "it outlives its session"
    with Session(daemon.dir) as session:
        paths = [create(session)[1] for _ in range(3)]
        session.raw.close()
        for path in paths:
            gone(path)
    with Daemon() as own, Session(own.dir) as session:
        path = create(session)[1]
        tap.equal(own.stop(), 0)
        assert not os.path.exists(path), "it outlives its daemon"


@tap.test
def only_its_session_may_name_it():
    with Session(daemon.dir) as mine, Session(daemon.dir) as theirs:
        buffer, path = create(mine)
        tap.equal(
            refusal(theirs.call("free_buffer", buffer=buffer)),
            ("NO_SUCH_HANDLE", f"buffer = {buffer}: this session has no such buffer"),
        )
        status = theirs.ask(theirs.lease(), buffer)[0].status
        tap.equal((status.reason, status.field), ("NO_SUCH_HANDLE", "buffer"))
        assert os.path.exists(path)


@tap.test
def a_repeated_request_gets_the_same_name():
    with Session(daemon.dir) as session:
        request = session.request("create_buffer", bytes=64, named=True)
        before = objects()
        first = session.raw.exchange(request)
        tap.equal(session.raw.exchange(request), first)
        tap.equal(len(objects() - before), 1)


@tap.test
def it_counts_against_the_quota_and_one_that_does_not_fit_leaves_nothing():
    with Daemon("--session.max_buffer=16T") as own, Session(own.dir) as session:
        before = objects()
        system = os.statvfs(SHM)
        # One that memory, or /dev/shm, cannot hold.
        too_much = system.f_blocks * system.f_frsize + (1 << 30)
        reason, text = refusal(session.call("create_buffer", bytes=too_much, named=True))
        tap.equal(reason, "NO_ROOM")
        assert text.startswith(f"bytes = {too_much}: "), text
        tap.equal(objects(), before)
        tap.equal(own.gauge("buffers"), 0)
        create(session)
        tap.equal(own.gauge("buffer_bytes"), 4096)


@tap.test
def a_client_that_unlinks_what_it_only_opened_harms_nobody():
    """B124: multiprocessing.shared_memory unlinks at exit what it attached to."""
    with Session(daemon.dir) as session:
        session.open_model()
        buffer, path = create(session, 8 * ROW)
        program = (
            "import sys; from multiprocessing import shared_memory\n"
            "memory = shared_memory.SharedMemory(sys.argv[1]); memory.buf[0] = 1\n"
        )
        for end, code in (("memory.close()", 0), ("1 / 0", 1)):
            second, second_path = create(session)
            name = os.path.basename(second_path)
            command = [sys.executable, "-c", program + end, name]
            done = subprocess.run(command, stderr=subprocess.DEVNULL, timeout=60)
            tap.equal(done.returncode, code)
            ok(session.call("free_buffer", buffer=second))
            assert not os.path.exists(second_path)
        command = [sys.executable, "-c", program + "memory.close()", os.path.basename(path)]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL, timeout=60)
        ok(session.raw.exchange(session.store(buffer, 0, 1)))
        ok(session.call("free_buffer", buffer=buffer))
        assert not os.path.exists(path)
        create(session)


def attends_through(client, view):
    """The client stores 5 in a block through view("f32", shape) and reads the mean of v back."""
    spec = {
        "layers": [{"n_heads": 1, "head_dim": DIM}],
        "groups": [{"block_size": 4, "kv_dtype": "f32", "n_blocks": 4}],
    }
    model = client.open_model(spec)
    q, k, v, out = (view("f32", (3, 1, DIM), offset=3 * ROW * i) for i in range(4))
    v.set(np.arange(3)[:, None, None])
    client.attend(
        model, 0, q=q, k=k, v=v, out=out, n_contexts=1, q_lens=[3], kv_lens=[3], tables=[[2]]
    )
    tap.equal(out.float32()[:, 0, 0].tolist(), [0.0, 0.5, 1.0])


@tap.test
def the_python_client_attends_through_a_buffer_it_mapped_by_name():
    with attnd.Client(daemon.dir) as client:
        buffer = client.create_buffer(12 * ROW, named=True)
        path = SHM + buffer.name
        assert os.path.exists(path)
        attends_through(client, buffer.view)
        tap.equal(attnd.map_named(buffer.name, 12 * ROW).tolist(), buffer.array.tolist())
        buffer.free()
        assert not os.path.exists(path)
        message = error_of(attnd.map_named, buffer.name)
        tap.equal(message[:2], ("UNAVAILABLE", "UNREACHABLE"))
        path = SHM + client.create_buffer(64, named=True).name
    assert not os.path.exists(path)


@tap.test
def an_object_outlives_whoever_attaches_by_the_python_client_and_ends():
    """B124, of ours: a process that ends in order, one that ends by an exception, one that is
    killed; the object stays, for its owner and for the next."""
    with attnd.Client(daemon.dir) as client:
        buffer = client.create_buffer(12 * ROW, named=True)
        ends = {"": 0, "raise RuntimeError": 1, "os.kill(os.getpid(), 9)": -9}
        for n, (end, code) in enumerate(ends.items(), 1):
            program = (
                "import os, sys; import attnd\n"
                "attnd.map_named(sys.argv[1])[0] += 1\n" + end
            )
            done = subprocess.run(
                [sys.executable, "-c", program, buffer.name],
                env=dict(os.environ, PYTHONPATH=os.path.join(BUILD, "python")),
                stderr=subprocess.PIPE,
                timeout=60,
            )
            tap.equal((done.returncode, int(buffer.array[0])), (code, n))
            assert b"resource_tracker" not in done.stderr, done.stderr
            assert os.path.exists(SHM + buffer.name), f"gone after {end!r}"
        attends_through(client, buffer.view)


@tap.test
def an_engine_that_starts_again_has_cleaned_up():
    with Daemon(keeper=True) as own, Session(own.dir) as session:
        path = create(session)[1]
        os.kill(own.engine(), signal.SIGKILL)
        gone(path)
        own.wait_ready()


@tap.test
def a_killed_daemon_leaves_one_lot_and_the_next_one_removes_it():
    """B121, and none of a daemon that lives is touched."""
    with Session(daemon.dir) as alive:
        living = create(alive)[1]
        left = []
        for _ in range(3):
            own = Daemon()
            with own:
                for path in left:
                    assert not os.path.exists(path), "a start did not clean up"
                session = Session(own.dir)
                left = [create(session)[1] for _ in range(2)]
                own.kill()
                session.raw.close()
                for path in left:
                    assert os.path.exists(path), "the test does not see what a kill leaves"
        with Daemon():
            for path in left:
                assert not os.path.exists(path), "the last start did not clean up"
        assert os.path.exists(living), "another daemon's object is gone"
        ok(alive.call("create_buffer", bytes=64, named=True))


@tap.test
def a_killed_keeper_and_engine_leave_it_to_the_next_start():
    own = Daemon(keeper=True)
    with own:
        session = Session(own.dir)
        path = create(session)[1]
        os.kill(own.process.pid, signal.SIGKILL)  # the engine dies with it
        own.process.wait()
        session.raw.close()
    time.sleep(0.1)
    with Daemon():
        gone(path)


@tap.test
def a_second_sigterm_leaves_nothing_behind_the_keeper():
    with Daemon(keeper=True) as own, Session(own.dir) as session:
        path = create(session)[1]
        freeze(own.engine())  # so that it cannot leave by itself
        own.process.send_signal(signal.SIGTERM)
        tap.until(lambda: "stopping" in own.log(), "the keeper has seen the first")
        time.sleep(0.2)  # Two within a moment are one.
        own.process.send_signal(signal.SIGTERM)
        tap.equal(own.process.wait(10), 143)
        assert not os.path.exists(path), "the keeper left it"


@tap.test
def what_is_not_ours_stays():
    path = os.path.join(SHM, f"{PREFIX[:-1]}.not-ours-{os.getpid()}")
    with open(path, "wb") as file:
        file.write(b"precious")
    try:
        with Daemon():
            pass
        with open(path, "rb") as file:
            tap.equal(file.read(), b"precious")
    finally:
        os.unlink(path)


with Daemon("--session.linger=300ms", "--log.level=debug") as daemon:
    tap.main()
