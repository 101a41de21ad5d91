"""Element types: how attnd's numbers lie in numpy arrays, and to and from float32.

name  array dtype          name  array dtype
f32   float32              i32   int32
f16   float16              i8    int8
bf16  uint16 (its bits)    u8    uint8
e4m3  uint8 (its bits)     e5m2  uint8 (its bits)
"""

import numpy as np

ARRAY_DTYPES = {
    "f32": np.dtype("<f4"),
    "f16": np.dtype("<f2"),
    "bf16": np.dtype("<u2"),
    "e4m3": np.dtype("u1"),
    "e5m2": np.dtype("u1"),
    "i8": np.dtype("i1"),
    "i32": np.dtype("<i4"),
    "u8": np.dtype("u1"),
}


def array_dtype(dtype):
    """The numpy dtype that holds elements of dtype; ValueError for one that has none."""
    if dtype not in ARRAY_DTYPES:
        raise ValueError(f"dtype = {dtype!r}: one of {', '.join(ARRAY_DTYPES)}")
    return ARRAY_DTYPES[dtype]


def bf16_bits(values):
    """float32 values → the bits of their bf16, uint16, rounded to nearest even; a NaN is 0x7FFF."""
    values = np.asarray(values, dtype=np.float32)
    bits = values.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16)


def bf16_values(bits):
    """The bits of bf16 numbers, uint16 → float32, exactly."""
    return (np.asarray(bits, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)


def encode(values, dtype):
    """Values (float32 or what converts to it) → an array as attnd wants it, nearest even.

    dtype is "f32", "f16" or "bf16"; integer types take integers only (TypeError), the 8-bit floats
    have no conversion here (ValueError).
    """
    if dtype == "bf16":
        return bf16_bits(values)
    _check_converts(dtype)
    # fp16 overflows to infinity by definition: no warning is due.
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(array_dtype(dtype), casting="same_kind")


def decode(array, dtype):
    """An array as attnd holds it → float32, exactly; the inverse of encode()."""
    if dtype == "bf16":
        return bf16_values(array)
    _check_converts(dtype)
    return np.asarray(array, dtype=array_dtype(dtype)).astype(np.float32)


def _check_converts(dtype):
    if dtype in ("e4m3", "e5m2"):
        raise ValueError(f"dtype = {dtype!r}: no conversion; the array holds its bits")
