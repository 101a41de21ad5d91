"""test_keeper.py: the two processes: who starts whom, what a crash costs, how they leave."""

import os
import signal
import socket
import subprocess
import time

from support import BUILD, IS_SANITIZED, Daemon, attnd

import tap


@tap.test
def a_killed_engine_is_back_within_a_second():
    with Daemon(keeper=True) as daemon:
        before = daemon.engine()
        client = attnd.Client(daemon.dir)
        client.create_buffer(4096)
        os.kill(before, signal.SIGKILL)
        begin = time.monotonic()
        wrong = tap.raises(attnd.Error, lambda: [client.ping() for _ in range(10**6)])
        tap.equal(wrong.code, "UNAVAILABLE")

        def served():
            try:
                with attnd.Client(daemon.dir, timeout=1) as new:
                    new.ping()
                    return True
            except (attnd.Error, OSError):
                return False

        tap.until(served, "a new engine serves", 5)
        seconds = time.monotonic() - begin
        assert seconds < (5 if IS_SANITIZED else 1), f"{seconds:.2f} s without an engine"
        assert daemon.engine() != before
        # It starts empty: the old session is gone with all it held.
        tap.equal(daemon.rpc("sessions.list")["sessions"], [])
        tap.equal(int(daemon.rpc("stats.get")["gauges"]["buffers"]), 0)
        tap.equal(daemon.stop(), 0)


@tap.test
def an_engine_that_crashes_over_and_over_ends_the_keeper_with_11():
    with Daemon("--keeper.max_crashes=3", keeper=True) as daemon:
        end = time.monotonic() + 30
        while daemon.process.poll() is None and time.monotonic() < end:
            pid = daemon.engine()
            if pid:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)
        tap.equal(daemon.process.poll(), 11)


@tap.test
def the_engine_dies_with_the_keeper():
    with Daemon(keeper=True) as daemon:
        pid = daemon.engine()
        daemon.kill()
        tap.until(lambda: not os.path.exists(f"/proc/{pid}"), "the engine is gone", 5)


@tap.test
def a_second_daemon_on_the_directory_is_refused_and_harms_nothing():
    with Daemon(keeper=True) as daemon:
        command = [f"{BUILD}/bin/attnd", f"--runtime.dir={daemon.dir}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30)
        text = done.stdout.decode()
        tap.equal(done.returncode, 73)
        assert daemon.dir in text and len(text.splitlines()) == 1, text
        with attnd.Client(daemon.dir) as client:
            client.ping()


@tap.test
def leftovers_of_a_crash_are_cleaned_and_files_are_not():
    """B142, with the two tests around; a directory of another user is in test_srv_keeper."""
    with Daemon() as daemon:
        daemon.kill()
        names = sorted(os.listdir(daemon.dir))
        assert {"buf", "control", "data", "lock"} <= set(names), names
        again = subprocess.Popen(
            [f"{BUILD}/bin/attnd", f"--runtime.dir={daemon.dir}", "--no-keeper"],
            stderr=subprocess.DEVNULL,
        )
        try:
            daemon.process = again
            daemon.wait_ready()
            tap.equal(daemon.stop(), 0)
        finally:
            again.kill()
            again.wait()
        for name in ("data", "buf", "control"):
            path = os.path.join(daemon.dir, name)
            if os.path.exists(path):
                os.unlink(path)
            with open(path, "w", encoding="ascii") as file:
                file.write("precious")
            done = subprocess.run(
                [f"{BUILD}/bin/attnd", f"--runtime.dir={daemon.dir}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=30,
            )
            assert done.returncode not in (0, 11), done.returncode
            assert path in done.stdout.decode(), done.stdout.decode()
            with open(path, encoding="ascii") as file:
                tap.equal(file.read(), "precious")
            os.unlink(path)


@tap.test
def sockets_are_the_users_own():
    with Daemon(keeper=True) as daemon:
        tap.equal(os.stat(daemon.dir).st_mode & 0o777, 0o700)
        for name in ("data", "buf", "control"):
            tap.equal(os.stat(os.path.join(daemon.dir, name)).st_mode & 0o777, 0o600)


@tap.test
def sigterm_drains_and_leaves_with_0():
    with Daemon(keeper=True) as daemon:
        pid = daemon.engine()
        with attnd.Client(daemon.dir) as client:
            client.ping()
            tap.equal(daemon.stop(), 0)
        assert not os.path.exists(f"/proc/{pid}")


@tap.test
def work_in_flight_is_finished_and_new_work_refused_while_draining():
    with Daemon("--drain.grace=2min") as daemon, attnd.Client(daemon.dir) as client:
        n = 1024 if IS_SANITIZED else 4096
        model = client.open_model(
            {
                "layers": [{"n_heads": 32, "n_kv_heads": 8, "head_dim": 128}],
                "groups": [{"block_size": 64, "kv_dtype": "f32", "n_blocks": n // 64}],
            }
        )
        buffer = client.create_buffer(n * (32 + 8 + 8 + 32) * 128 * 4)
        sizes = [32, 8, 8, 32]
        tensors, offset = [], 0
        for heads in sizes:
            tensors.append(buffer.view("f32", (n, heads, 128), offset=offset))
            offset += n * heads * 128 * 4
        q, k, v, out = tensors
        pending = client.submit(
            model,
            0,
            q=q,
            k=k,
            v=v,
            out=out,
            n_contexts=1,
            q_lens=[n],
            kv_lens=[n],
            tables=[list(range(n // 64))],
            timeout=120,
        )
        tap.until(
            lambda: int(daemon.rpc("stats.get")["gauges"]["in_flight"]), "it is in flight", 30
        )
        daemon.process.send_signal(signal.SIGTERM)
        tap.until(lambda: not daemon.rpc("server.ready")["ready"], "it drains")
        wrong = tap.raises(attnd.Error, client.create_buffer, 4096)
        tap.equal((wrong.code, wrong.reason), ("UNAVAILABLE", "DRAINING"))
        client.ping()
        pending.wait()
        tap.equal(daemon.process.wait(120), 0)


@tap.test
def a_session_ends_with_its_buffer_connection():
    with Daemon("--session.linger=500ms") as daemon:
        client = attnd.Client(daemon.dir)
        client.create_buffer(1 << 20)
        tap.equal(len(daemon.rpc("sessions.list")["sessions"]), 1)
        client._link._lease.close()
        time.sleep(0.1)
        tap.equal(len(daemon.rpc("sessions.list")["sessions"]), 1)  # it lingers
        tap.until(lambda: not daemon.rpc("sessions.list")["sessions"], "the session has ended")
        tap.equal(int(daemon.rpc("stats.get")["gauges"]["buffer_bytes"]), 0)
        wrong = tap.raises(attnd.Error, client.create_buffer, 4096)
        tap.equal((wrong.code, wrong.reason), ("UNAVAILABLE", "RESTARTED"))


@tap.test
def help_and_version_need_no_file_and_no_right():
    for flag, word in (("--help", "--no-keeper"), ("--version", "attnd ")):
        command = [f"{BUILD}/bin/attnd", flag]
        if os.geteuid() == 0:
            command = ["setpriv", "--reuid=65534", "--clear-groups", *command]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, cwd="/", env={"PATH": os.environ["PATH"]}
        )
        tap.equal(done.returncode, 0)
        assert word in done.stdout.decode()


@tap.test
def another_user_is_refused():
    if os.geteuid() != 0:
        raise tap.Skip("needs root to become another user")
    with Daemon() as daemon:
        # Even with the modes out of the way the peer's uid decides.
        os.chmod(os.path.dirname(daemon.dir), 0o755)
        os.chmod(daemon.dir, 0o755)
        for name in ("data", "buf", "control"):
            os.chmod(os.path.join(daemon.dir, name), 0o666)
        child = os.fork()
        if not child:
            os.setuid(65534)
            code = 0
            for name, kind in (
                ("data", socket.SOCK_STREAM),
                ("control", socket.SOCK_STREAM),
                ("buf", socket.SOCK_SEQPACKET),
            ):
                sock = socket.socket(socket.AF_UNIX, kind)
                sock.settimeout(5)
                try:
                    sock.connect(os.path.join(daemon.dir, name))
                    sock.sendall(b'{"jsonrpc":"2.0","id":1,"method":"server.ping"}\n')
                    data = sock.recv(100)
                    if data and data != bytes.fromhex("0053500000310000"):
                        code = 1
                    elif data and sock.recv(100):
                        code = 1
                except (ConnectionResetError, BrokenPipeError):
                    pass
                except OSError:
                    code = 2
            os._exit(code)
        tap.equal(os.waitpid(child, 0)[1], 0)
        with attnd.Client(daemon.dir) as client:
            client.ping()


tap.main()
