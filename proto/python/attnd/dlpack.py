"""DLPack (dmlc.github.io/dlpack, the unversioned form): buffers and tensors as torch, jax and numpy
take them, without a copy.

numpy makes the capsule, and the capsule holds the memory; only the type is set here where numpy has
none. 8-bit floats go out as their bytes, u8: the unversioned form has no code for them.
"""

import ctypes

CPU = (1, 0)  # kDLCPU, device 0
CUDA = (2, 0)  # kDLCUDA, device 0
_CODES = {"bf16": 4}  # kDLBfloat; numpy gives its bits as kDLUInt


class _Tensor(ctypes.Structure):
    """DLTensor, which a DLManagedTensor begins with."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_pointer_of = ctypes.PYFUNCTYPE(ctypes.POINTER(_Tensor), ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def capsule(array, dtype, is_device=False, stream=None, max_version=None, dl_device=None, copy=None):
    """A capsule "dltensor" of array's memory, a GPU's if is_device; the other arguments are those of the
    protocol's __dlpack__. BufferError for a stream of the CPU, another device or a copy. max_version:
    this form is older than any."""
    del max_version
    own, whose = (CUDA, "a GPU") if is_device else (CPU, "the CPU")
    # The daemon is done with a GPU's memory before it answers: any stream sees it.
    if stream is not None and not is_device:
        raise BufferError(f"stream = {stream}: memory of the CPU has none")
    if dl_device is not None and tuple(dl_device) != own:
        raise BufferError(f"dl_device = {tuple(dl_device)}: the memory is {whose}'s, {own}")
    if copy:
        raise BufferError("copy = True: this is the memory itself")
    made = array.__dlpack__()
    tensor = _pointer_of(made, b"dltensor").contents
    tensor.device_type, tensor.device_id = own
    tensor.code = _CODES.get(dtype, tensor.code)
    return made
