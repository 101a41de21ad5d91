"""Memory of a GPU that the daemon made, mapped here through the NVIDIA driver, in the primary context of
GPU 0, which the CUDA runtime, torch and the like use too. No package is needed for it."""

import ctypes
import threading
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

from . import error

_PINNED, _ON_DEVICE, _FILE_DESCRIPTOR, _READ_WRITE, _RECOMMENDED = 1, 1, 1, 3, 1


class _Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class _Kind(ctypes.Structure):
    """CUmemAllocationProp"""

    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", _Location),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class _Access(ctypes.Structure):
    """CUmemAccessDesc"""

    _fields_ = [("location", _Location), ("flags", c_int)]


_CALLS = {
    "cuInit": (c_uint,),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (c_void_p,),
    "cuGetErrorName": (c_int, c_void_p),
    "cuMemGetAllocationGranularity": (c_void_p, c_void_p, c_int),
    "cuMemImportFromShareableHandle": (c_void_p, c_void_p, c_int),
    "cuMemAddressReserve": (c_void_p, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemAddressFree": (c_uint64, c_size_t),
    "cuMemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemUnmap": (c_uint64, c_size_t),
    "cuMemSetAccess": (c_uint64, c_size_t, c_void_p, c_size_t),
    "cuMemRelease": (c_uint64,),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuStreamSynchronize": (c_void_p,),
}


class _Driver:
    """libcuda.so.1 and the primary context of GPU 0. Error UNSUPPORTED without them."""

    def __init__(self):
        try:
            library = ctypes.CDLL("libcuda.so.1")
            self.calls = {name: getattr(library, name) for name in _CALLS}
        except (OSError, AttributeError) as wrong:
            raise _unsupported(f"no NVIDIA driver in this process: {wrong}") from None
        for name, call in self.calls.items():
            call.argtypes, call.restype = _CALLS[name], c_int
        device, self.context = c_int(), c_void_p()
        self._do("UNSUPPORTED", "cuInit", 0)
        self._do("UNSUPPORTED", "cuDeviceGet", byref(device), 0)
        self._do("UNSUPPORTED", "cuDevicePrimaryCtxRetain", byref(self.context), device)

    def _do(self, reason, name, *args):
        result = self.calls[name](*args)
        if result:
            text = c_char_p()
            self.calls["cuGetErrorName"](result, byref(text))
            why = (text.value or b"unknown").decode()
            code = {"UNSUPPORTED": "UNIMPLEMENTED", "NO_ROOM": "RESOURCE_EXHAUSTED"}.get(reason)
            raise error.Error(
                code or "INTERNAL", reason, "kind", f"kind = cuda_vmm: {name}: {why} ({result})"
            )

    def run(self, reason, *calls):
        """Calls, each (name, arguments…), with the context current. Error with reason."""
        self._do(reason, "cuCtxPushCurrent_v2", self.context)
        try:
            for name, *args in calls:
                self._do(reason, name, *args)
        finally:
            self.calls["cuCtxPopCurrent_v2"](byref(c_void_p()))


def _unsupported(why):
    return error.Error("UNIMPLEMENTED", "UNSUPPORTED", "kind", f"kind = cuda_vmm: {why}")


_lock = threading.Lock()  # guards _driver until it is there
_driver = None


def _open():
    global _driver  # pylint: disable=global-statement
    with _lock:
        if not _driver:
            _driver = _Driver()
        return _driver


class Memory:
    """n_bytes of a mapping of what the descriptor names, from offset on; unmapped when nobody has it
    any more. Its array interface says where it lies, not that the CPU could read there: numpy then
    does the arithmetic of views, and nothing else may be done with such arrays."""

    def __init__(self, fd, n_bytes, offset):
        """The descriptor stays the caller's. Error UNSUPPORTED without a driver or a GPU, NO_ROOM."""
        self._driver = _open()
        self._at = 0
        kind = _Kind(_PINNED, _FILE_DESCRIPTOR, _Location(_ON_DEVICE, 0))
        unit, handle = c_size_t(), c_uint64()
        self._driver.run(
            "NO_ROOM",
            ("cuMemGetAllocationGranularity", byref(unit), byref(kind), _RECOMMENDED),
            ("cuMemImportFromShareableHandle", byref(handle), fd, _FILE_DESCRIPTOR),
        )
        self._mapped = -(-(offset + n_bytes) // unit.value) * unit.value
        try:
            self._map(handle)
        finally:
            # The mapping holds the memory from here on.
            self._driver.calls["cuMemRelease"](handle)
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (n_bytes,),
            "data": (self._at + offset, False),
        }

    def _map(self, handle):
        run, at = self._driver.run, c_uint64()
        right = _Access(_Location(_ON_DEVICE, 0), _READ_WRITE)
        run("NO_ROOM", ("cuMemAddressReserve", byref(at), self._mapped, 0, 0, 0))
        try:
            run("NO_ROOM", ("cuMemMap", at, self._mapped, 0, handle, 0))
        except error.Error:
            self._driver.calls["cuMemAddressFree"](at, self._mapped)
            raise
        self._at = at.value  # from here on __del__ undoes it
        run("NO_ROOM", ("cuMemSetAccess", at, self._mapped, byref(right), 1))

    def __del__(self):
        if getattr(self, "_at", 0):
            self._driver.calls["cuMemUnmap"](self._at, self._mapped)
            self._driver.calls["cuMemAddressFree"](self._at, self._mapped)


def read(to, address):
    """Copies from the GPU into a numpy array without gaps; done when it returns."""
    if to.nbytes:
        _open().run("KERNEL_FAILED", ("cuMemcpyDtoH_v2", to.ctypes.data, address, to.nbytes))


def write(address, values):
    """Copies a numpy array without gaps to the GPU; done when it returns."""
    if values.nbytes:
        # The copy returns once the bytes are staged: another process might not see them yet.
        _open().run(
            "KERNEL_FAILED",
            ("cuMemcpyHtoD_v2", address, values.ctypes.data, values.nbytes),
            ("cuStreamSynchronize", None),
        )
