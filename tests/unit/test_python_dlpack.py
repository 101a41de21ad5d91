"""test_python_dlpack.py: tensors of a buffer go out by DLPack as they lie in memory: bf16 by its own
code, 8-bit floats as bytes, and the memory stays as long as whoever took it."""

import ctypes
import gc
import os
import sys
import weakref

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("ATTND_BUILD") or os.path.join(ROOT, "build", "release")
sys.path[:0] = [os.path.join(BUILD, "python"), os.path.join(ROOT, "tests", "support")]

import attnd
import numpy as np
import tap
from fake_daemon import FakeDaemon


class Managed(ctypes.Structure):
    """DLManagedTensor of dlpack.h, written anew."""


Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = [
    ("data", ctypes.c_void_p),
    ("device_type", ctypes.c_int),
    ("device_id", ctypes.c_int),
    ("n_dims", ctypes.c_int),
    ("code", ctypes.c_uint8),
    ("bits", ctypes.c_uint8),
    ("lanes", ctypes.c_uint16),
    ("shape", ctypes.POINTER(ctypes.c_int64)),
    ("strides", ctypes.POINTER(ctypes.c_int64)),
    ("byte_offset", ctypes.c_uint64),
    ("manager", ctypes.c_void_p),
    ("deleter", Deleter),
]
INT, UINT, FLOAT, BFLOAT = 0, 1, 2, 4

api = ctypes.pythonapi
api.PyCapsule_GetPointer.restype = ctypes.POINTER(Managed)
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


def managed(capsule):
    return api.PyCapsule_GetPointer(capsule, b"dltensor").contents


def buffer_of(n_bytes):
    return attnd.Buffer(5, np.zeros(n_bytes, np.uint8), None)


def address(array):
    return array.__array_interface__["data"][0]


def type_of(tensor):
    m = managed(tensor.__dlpack__())
    return m.code, m.bits, m.lanes


@tap.test
def every_type_goes_out_as_what_it_is():
    buffer = buffer_of(64)
    wanted = {
        "f32": (FLOAT, 32, 1),
        "f16": (FLOAT, 16, 1),
        "bf16": (BFLOAT, 16, 1),
        "i32": (INT, 32, 1),
        "i8": (INT, 8, 1),
        "u8": (UINT, 8, 1),
        "e4m3": (UINT, 8, 1),
        "e5m2": (UINT, 8, 1),
    }
    tap.equal({name: type_of(buffer.view(name, 4)) for name in wanted}, wanted)
    tap.equal(type_of(buffer), (UINT, 8, 1))


@tap.test
def a_bf16_tensor_with_gaps_is_described_as_it_lies():
    buffer = buffer_of(4096)
    tensor = buffer.view("bf16", (4, 6, 8), offset=64)[1:, 2:4]
    tensor.set(1.5)
    capsule = tensor.__dlpack__()
    m = managed(capsule)
    tap.equal((m.device_type, m.device_id), tensor.__dlpack_device__())
    tap.equal((m.device_type, m.device_id, m.n_dims, m.byte_offset), (1, 0, 3, 0))
    tap.equal(m.data, address(buffer.array) + 64 + (48 + 16) * 2)
    tap.equal((m.shape[:3], m.strides[:3]), ([3, 2, 8], [48, 8, 1]))
    bits = ctypes.cast(m.data, ctypes.POINTER(ctypes.c_uint16))
    tap.equal([bits[0], bits[15], bits[16], bits[48]], [0x3FC0, 0x3FC0, 0, 0x3FC0])


@tap.test
def numpy_takes_the_memory_itself():
    buffer = buffer_of(1024)
    for name in ("f32", "f16", "i32", "i8", "u8", "e4m3"):
        tensor = buffer.view(name, (3, 4), offset=128)[1:]
        taken = np.from_dlpack(tensor)
        tap.equal((taken.dtype, taken.shape), (tensor.array.dtype, (2, 4)))
        tap.equal(address(taken), address(tensor.array))
        tensor.array[1, 2] = 77
        tap.equal(float(taken[1, 2]), 77.0)
    taken = np.from_dlpack(buffer)
    tap.equal((taken.shape, address(taken)), ((1024,), address(buffer.array)))


@tap.test
def numpy_refuses_bf16_rather_than_take_its_bits_for_integers():
    tensor = buffer_of(64).view("bf16", 4)
    tap.raises((RuntimeError, BufferError), np.from_dlpack, tensor)


@tap.test
def nothing_and_a_scalar_go_out_too():
    buffer = buffer_of(64)
    m = managed(buffer.view("bf16", (0, 3)).__dlpack__())
    tap.equal((m.n_dims, m.shape[:2], m.code), (2, [0, 3], BFLOAT))
    tap.equal(managed(buffer.view("bf16", ()).__dlpack__()).n_dims, 0)


@tap.test
def newer_consumers_may_say_what_they_take():
    tensor = buffer_of(64).view("bf16", 4)
    capsule = tensor.__dlpack__(max_version=(1, 0), dl_device=(1, 0), copy=False)
    tap.equal(managed(capsule).code, BFLOAT)


@tap.test
def what_the_memory_is_not_is_refused():
    buffer = buffer_of(64)
    for one in (buffer, buffer.view("f32", 4)):
        for options, text in (
            ({"stream": 1}, "stream = 1: memory of the CPU has none"),
            ({"dl_device": (2, 0)}, "dl_device = (2, 0): the memory is the CPU's, (1, 0)"),
            ({"copy": True}, "copy = True: this is the memory itself"),
        ):
            tap.equal(str(tap.raises(BufferError, one.__dlpack__, **options)), text)


def mapping():
    """(mapped memory of a client that is gone, what tells its end)."""
    with FakeDaemon() as daemon:
        client = attnd.Client(daemon.dir, timeout=10)
        buffer = client.create_buffer(1 << 16)
        tensor = buffer.view("bf16", (128, 256))
        tensor.set(3)
        base = buffer.array
        while isinstance(base.base, np.ndarray):
            base = base.base
        buffer.free()
        client.close()
    return tensor, weakref.ref(base)


@tap.test
def the_memory_lives_until_the_consumer_deletes_it():
    tensor, alive = mapping()
    capsule = tensor.__dlpack__()
    m = managed(capsule)
    api.PyCapsule_SetName(capsule, b"used_dltensor")  # a consumer has taken it
    del tensor, capsule
    gc.collect()
    assert alive() is not None
    tap.equal(ctypes.cast(m.data, ctypes.POINTER(ctypes.c_uint16))[128 * 256 - 1], 0x4040)
    m.deleter(ctypes.byref(m))
    gc.collect()
    assert alive() is None, "the deleter has not let the memory go"


@tap.test
def a_capsule_that_nobody_took_lets_the_memory_go():
    tensor, alive = mapping()
    for _ in range(3):
        tensor.__dlpack__()
    del tensor
    gc.collect()
    assert alive() is None


tap.main()
