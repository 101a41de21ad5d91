"""test_fake_gpu.py: the road with memory that the CPU may not touch: no line of the daemon, of attnctl or
of the clients takes an address of a device for one of the host, and what cannot be had is said.

The daemon is build/*/fake_gpu/bin/attnd, the driver build/*/fake_gpu/lib/libcuda.so.1.
"""

import ctypes
import json
import os
import subprocess
import sys
import tempfile

from support import BUILD, IS_SANITIZED, ROOT, Daemon, error_of

FAKE = os.path.join(BUILD, "fake_gpu")
LIB = os.path.join(FAKE, "lib")
if os.environ.get("LD_LIBRARY_PATH") != LIB:  # read when a process starts
    os.execve(sys.executable, [sys.executable, *sys.argv], dict(os.environ, LD_LIBRARY_PATH=LIB))

import attnd
import numpy as np
import tap
from models import AUSTEN_GOLDEN

CASES = os.path.join(ROOT, "tests", "cases")
GPU = "--device.backend=cuda"


def fake(*flags, **options):
    return Daemon(GPU, *flags, build=FAKE, **options)


def check(daemon, *words):
    """Exit code and rows of attnctl check."""
    done = subprocess.run(
        [os.path.join(BUILD, "bin", "attnctl"), "--json", "check", "--dir", daemon.dir, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=500,
        check=False,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def must_pass(code, rows, n_least):
    failed = [f"{r['case']} {r['variant']}: {r['message']}" for r in rows if r["verdict"] == "failed"]
    tap.equal((code, failed), (0, []))
    n_ok = sum(r["verdict"] == "ok" for r in rows)
    assert n_ok >= n_least, f"{n_ok} of {len(rows)} ran"


def start(*flags, env=None):
    """(exit code, log) of a fake daemon that does not start."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [os.path.join(FAKE, "bin", "attnd"), f"--runtime.dir={home}/run", *flags],
            env=dict(os.environ, **(env or {})),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    return done.returncode, done.stderr


@tap.test
def every_case_file_holds():
    with fake() as daemon:
        must_pass(*check(daemon, CASES), 100)


@tap.test
def every_case_file_holds_through_plans():
    if IS_SANITIZED:
        raise tap.Skip("sanitized: too slow for all of them twice")
    with fake() as daemon:
        must_pass(*check(daemon, "--plans", CASES), 100)


@tap.test
def what_is_captured_replays():
    with fake() as daemon, tempfile.TemporaryDirectory() as home:
        daemon.rpc("capture.start", n=20, into=home)
        must_pass(*check(daemon, CASES), 100)
        tap.until(lambda: daemon.rpc("capture.stop")["pending"] == 0, "files are written")
        files = os.listdir(home)
        tap.equal(len(files), 20)
        must_pass(*check(daemon, home), 20)


@tap.test
def a_model_speaks_its_golden_texts():
    with fake() as daemon:
        for one in AUSTEN_GOLDEN:
            done = subprocess.run(
                [sys.executable, os.path.join(ROOT, "scripts", "generate.py")]
                + ["--runtime-dir", daemon.dir, "--dtype", "f16", "--prompt", one["prompt"]]
                + ["--model", os.path.join(ROOT, "tests", "data", "austen1m.bf16.bin")],
                env=dict(os.environ, ATTND_BUILD=FAKE),
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            tap.equal((done.returncode, done.stdout), (0, one["text"] + "\n"))


@tap.test
def a_buffer_is_read_and_written_by_copies_alone():
    with fake() as daemon, attnd.Client(daemon.dir) as client:
        tap.equal(client.info.device.backend, "cuda")
        buffer = client.create_buffer(4096)
        assert buffer.is_device
        tap.equal(buffer.read().tolist(), [0] * 4096)
        view = buffer.view("f32", (2, 3, 8), offset=64)
        tap.equal((view.shape, view.strides, view.offset), ((2, 3, 8), (96, 32, 4), 64))
        view.set(np.arange(48).reshape(2, 3, 8))
        tap.equal(view.float32().ravel().tolist(), list(range(48)))
        part = view[:, 1:, ::2]  # with gaps in every dimension
        tap.equal(part.float32().ravel().tolist(), [x for x in range(48) if x % 24 > 7 and x % 2 == 0])
        part.set(-1)
        whole = view.read()
        tap.equal(whole[:, 1:, ::2].ravel().tolist(), [-1] * 16)
        tap.equal((whole[:, 0].tolist(), whole[1, 2, 1]), ([list(range(8)), list(range(24, 32))], 41))
        tap.equal(buffer.read()[:64].tolist() + buffer.read()[256:].tolist(), [0] * (64 + 3840))
        tap.raises(BufferError, lambda: buffer.array)
        tap.raises(BufferError, lambda: view.array)
        assert not hasattr(view, "__array_interface__")
        buffer.free()


@tap.test
def a_view_keeps_the_memory_when_its_buffer_is_freed():
    with fake() as daemon, attnd.Client(daemon.dir) as client:
        buffer = client.create_buffer(100000)
        view = buffer.view("i32", 5)
        view.write(np.arange(5))
        buffer.free()
        del buffer
        tap.equal(view.read().tolist(), [0, 1, 2, 3, 4])


@tap.test
def other_libraries_take_it_as_memory_of_the_gpu():
    class Dl(ctypes.Structure):
        _fields_ = [
            ("data", ctypes.c_void_p),
            ("device", ctypes.c_int32 * 2),
            ("n_dims", ctypes.c_int32),
            ("code", ctypes.c_uint8),
            ("bits", ctypes.c_uint8),
        ]

    pointer = ctypes.PYFUNCTYPE(ctypes.POINTER(Dl), ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    with fake() as daemon, attnd.Client(daemon.dir) as client:
        view = client.create_buffer(4096).view("bf16", (4, 8), offset=128)
        cuda = view.__cuda_array_interface__
        tap.equal((cuda["shape"], cuda["typestr"], cuda["version"]), ((4, 8), "<u2", 3))
        tap.equal(view.__dlpack_device__(), (2, 0))
        for stream in (None, -1, 1, 7):
            capsule = view.__dlpack__(stream=stream)
            dl = pointer(capsule, b"dltensor").contents
            tap.equal((dl.data, list(dl.device)), (cuda["data"][0], [2, 0]))
            tap.equal((dl.n_dims, dl.code, dl.bits), (2, 4, 16))
        tap.raises(BufferError, view.__dlpack__, dl_device=(1, 0))


@tap.test
def memory_of_a_gpu_has_no_name():
    with fake() as daemon, attnd.Client(daemon.dir) as client:
        code, reason, field, _ = error_of(client.create_buffer, 64, named=True)
        tap.equal((code, reason, field), ("UNIMPLEMENTED", "UNSUPPORTED", "named"))


@tap.test
def a_client_without_a_driver_is_told_and_keeps_no_buffer():
    script = (
        "import sys, attnd\n"
        "client = attnd.Client(sys.argv[1])\n"
        "try:\n    client.create_buffer(64)\n"
        "except attnd.Error as wrong:\n    print(wrong.reason, wrong.field, wrong.message)\n"
        "client.close()\n"
    )
    path = os.path.join(BUILD, "python")
    case = os.path.join(CASES, "append_reaches_its_rows_only.json")
    with fake() as daemon:
        done = subprocess.run(
            [sys.executable, "-c", script, daemon.dir],
            env=dict(os.environ, PYTHONPATH=path, FAKE_GPU_NONE="1"),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        said = "UNSUPPORTED kind kind = cuda_vmm: cuInit: CUDA_ERROR_NO_DEVICE (100)\n"
        tap.equal((done.returncode, done.stdout, done.stderr), (0, said, ""))
        os.environ["FAKE_GPU_NONE"] = "1"
        try:
            _, rows = check(daemon, case)
        finally:
            del os.environ["FAKE_GPU_NONE"]
        text = "kind = FD_CUDA_VMM: no GPU: CUDA_ERROR_NO_DEVICE (100)"
        assert all(text in row["message"] for row in rows if row["verdict"] == "failed"), rows
        assert any(row["verdict"] == "failed" for row in rows), rows
        tap.until(lambda: daemon.gauge("buffers") == 0, "no buffer is left")


@tap.test
def auto_takes_the_gpu_and_says_so():
    with Daemon("--device.backend=auto", build=FAKE) as daemon:
        tap.equal(daemon.rpc("server.info")["device"]["backend"], "cuda")
        line = next(line for line in daemon.log().splitlines() if "ready  dir=" in line)
        assert ' backend=cuda device="a GPU that is none" ' in line, line
        assert "passed_over" not in line, line


@tap.test
def auto_takes_the_cpu_where_the_gpu_cannot_be_had_and_says_why():
    os.environ["FAKE_GPU_NONE"] = "1"
    try:
        daemon = Daemon("--device.backend=auto", build=FAKE)
    finally:
        del os.environ["FAKE_GPU_NONE"]
    with daemon, attnd.Client(daemon.dir) as client:
        tap.equal(client.info.device.backend, "cpu")
        assert not client.create_buffer(64).is_device
        line = next(line for line in daemon.log().splitlines() if "ready  dir=" in line)
        assert line.endswith(' passed_over="device.backend = cuda: no NVIDIA driver"'), line


@tap.test
def a_gpu_that_was_demanded_and_cannot_be_had_is_one_line_and_exit_code_69():
    for flags in ([], ["--no-keeper"]):
        code, log = start(GPU, *flags, env={"FAKE_GPU_NONE": "1"})
        tap.equal(code, 69)
        wrong = [line for line in log.splitlines() if "error" in line.split()]
        tap.equal(len(wrong), 1)
        assert 'why="device.backend = cuda: no NVIDIA driver"' in wrong[0], log


if __name__ == "__main__":
    tap.main()
