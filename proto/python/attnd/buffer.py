"""Memory that this process and the daemon both map, and the socket its descriptors come over."""

import mmap
import os
import select
import socket
import threading
import time

import numpy as np

from . import cuda, dlpack, error, transport, wire
from . import dtype as dtypes

_PACKET = 1024  # bytes, the largest either way
_MAX_FDS = 8  # of a packet; all but the first are surplus and closed


class FdSocket:
    """The connection to the buffer socket: the session's lease, and the way descriptors come."""

    def __init__(self, path, session, deadline):
        """Connects and names the session. Error as of any call; UNAVAILABLE names the path."""
        self._where = f"buf = {path}"
        self._session = session
        self._lock = threading.Lock()  # guards one exchange at a time: replies carry no id
        self._socket = transport.connect("buf", path, socket.SOCK_SEQPACKET, deadline)
        try:
            self.exchange(0, deadline)
        except BaseException:
            self.close()
            raise

    def exchange(self, buffer, deadline):
        """(FdReply, descriptor or -1) for a buffer; 0 only takes the lease. The caller closes the
        descriptor. An exchange that times out ends the connection: its late reply would be taken
        for the next one's."""
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise error.timed_out("buf", f"{self._where}: another buffer is still being asked for")
        try:
            return self._exchange(buffer, deadline)
        finally:
            self._lock.release()

    def _exchange(self, buffer, deadline):
        if self._socket.fileno() < 0:
            raise error.unreachable(
                "buf", f"{self._where}: closed, as an earlier reply did not come"
            )
        request = wire.FdRequest(session=self._session, buffer=buffer)
        try:
            self._socket.send(request.SerializeToString())
            poller = select.poll()
            poller.register(self._socket, select.POLLIN)
            if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                self._socket.close()
                raise error.timed_out("buf", f"{self._where}: no reply in time")
            packet, fds, _, _ = socket.recv_fds(
                self._socket, _PACKET, _MAX_FDS, socket.MSG_CMSG_CLOEXEC
            )
        except OSError as wrong:
            why = wrong.strerror or wrong
            raise error.unreachable("buf", f"{self._where}: {why}; attnd is gone") from None
        for surplus in fds[1:]:
            os.close(surplus)
        fd = fds[0] if fds else -1
        if not packet:
            raise error.unreachable("buf", f"{self._where}: attnd closed the connection or is gone")
        try:
            reply = wire.parse(wire.FdReply, packet, "buf")
            if reply.status.code:
                raise wire.status_error(reply.status)
        except error.Error:
            if fd >= 0:
                os.close(fd)
            raise
        return reply, fd

    @property
    def is_gone(self):
        """Has either side ended the connection?"""
        try:
            return self._socket.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self):
        """Ends the lease."""
        try:
            # Wakes a thread that polls it; close() would let the number be used again.
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        with self._lock:
            self._socket.close()


def map_buffer(fds, handle, deadline):
    """(the buffer's memory as a uint8 array, mapped shared until the last view of it goes, whether it
    is a GPU's: such an array must not be read or written). fds has exchange(), as FdSocket."""
    reply, fd = fds.exchange(handle, deadline)
    if fd >= 0 and reply.kind == wire.ENUMS["FdKind"]["cuda_vmm"]:
        try:
            return np.asarray(cuda.Memory(fd, reply.bytes, reply.offset)), True
        finally:
            os.close(fd)
    if fd < 0 or reply.kind != wire.ENUMS["FdKind"]["memfd"]:
        if fd >= 0:
            os.close(fd)
        raise error.Error(
            "UNIMPLEMENTED",
            "UNSUPPORTED",
            "kind",
            f"kind = {reply.kind}: this client maps memory files (1) and CUDA VMM memory (2)",
        )
    try:
        # A mapping starts at a page, a buffer anywhere.
        skip = reply.offset % mmap.ALLOCATIONGRANULARITY
        memory = mmap.mmap(fd, skip + reply.bytes, mmap.MAP_SHARED, offset=reply.offset - skip)
    except (OSError, ValueError) as wrong:
        raise error.Error(
            "INTERNAL", "BROKEN", "bytes", f"bytes = {reply.bytes}: cannot be mapped: {wrong}"
        ) from None
    finally:
        os.close(fd)
    return np.frombuffer(memory, dtype=np.uint8, count=reply.bytes, offset=skip), False


def map_named(name, n_bytes=None):
    """The memory of a named buffer, of this process' client or another's, as a uint8 array, mapped
    shared until the last view of it goes; n_bytes: its first ones, None: all of the object.

    This is how Python attaches by name: multiprocessing.shared_memory would unlink the object when
    the process ends. Error UNREACHABLE when there is none of that name to be seen here.
    """
    what = f"shm_name = {name}"
    if not name.startswith("/") or "/" in name[1:]:
        raise error.Error(
            "INTERNAL", "BROKEN", "shm_name", f"shm_name = {name!r}: no name of a shared memory object"
        )
    try:
        fd = os.open(f"/dev/shm{name}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as wrong:
        raise error.unreachable(
            "shm_name", f"{what}: cannot be opened here: {wrong.strerror}"
        ) from None
    try:
        memory = mmap.mmap(fd, n_bytes or 0, mmap.MAP_SHARED)
    except (OSError, ValueError) as wrong:
        raise error.Error(
            "INTERNAL", "BROKEN", "shm_name", f"{what}: cannot be mapped: {wrong}"
        ) from None
    finally:
        os.close(fd)
    return np.frombuffer(memory, dtype=np.uint8)


class _Memory:
    """What a buffer and a tensor are both: an array of shared memory, of the CPU or of a GPU."""

    def __init__(self, array, is_device):
        self.is_device = is_device
        self._array = array

    @property
    def array(self):
        """numpy view of the memory itself. BufferError when it is a GPU's: read() and write() copy."""
        if self.is_device:
            raise BufferError("array: the memory is a GPU's, read() and write() copy")
        return self._array

    @property
    def __array_interface__(self):
        if self.is_device:
            raise AttributeError("__array_interface__: the memory is a GPU's")
        return self._array.__array_interface__

    @property
    def __cuda_array_interface__(self):
        if not self.is_device:
            raise AttributeError("__cuda_array_interface__: the memory is the CPU's")
        # The daemon is done with it before it answers: there is no stream to wait for.
        return {**self._array.__array_interface__, "version": 3, "stream": None}

    def __dlpack_device__(self):
        return dlpack.CUDA if self.is_device else dlpack.CPU

    def read(self):
        """A copy of what lies there, a numpy array (attnd.dtype)."""
        if not self.is_device:
            return self._array.copy()
        out = np.empty(self._array.shape, self._array.dtype)
        for part, copy in _whole_parts(self._array, out):
            cuda.read(copy, _address(part))
        return out

    def write(self, values):
        """Stores an array of the same dtype (attnd.dtype), or what numpy would assign; broadcasts."""
        if not self.is_device:
            self._array[...] = values
            return
        image = np.empty(self._array.shape, self._array.dtype)
        image[...] = values
        for part, copy in _whole_parts(self._array, image):
            cuda.write(_address(part), copy)


class Buffer(_Memory):
    """Shared memory of the session, from Client.create_buffer(). Zero-filled when new.

    handle  the buffer's number on the wire
    bytes   its size
    is_device  is it memory of a GPU?
    array   its bytes, a uint8 array; also through the array interface and DLPack. Not of a GPU's:
            there are read() and write(), and the CUDA array interface and DLPack
    name    of its POSIX shared memory object ("/attnd-shm-…", map_named()); None: it has none
    """

    def __init__(self, handle, array, free, name=None, is_device=False):
        super().__init__(array, is_device)
        self.handle = handle
        self.bytes = array.size
        self.name = name
        self._free = free

    def __dlpack__(self, **options):
        return dlpack.capsule(self._array, "u8", self.is_device, **options)

    def view(self, dtype, shape, offset=0):
        """A Tensor without gaps: dtype "f32", "f16", "bf16", "i32", …; offset in bytes from the
        buffer's start, a multiple of the element. ValueError when it does not fit."""
        item = dtypes.array_dtype(dtype)
        shape = tuple(int(n) for n in (shape if np.iterable(shape) else (shape,)))
        if min(shape, default=0) < 0:
            raise ValueError(f"shape = {list(shape)}: no negative counts")
        size = int(np.prod(shape, dtype=np.int64)) * item.itemsize
        if offset < 0 or offset % item.itemsize:
            raise ValueError(
                f"offset = {offset}: a multiple of {item.itemsize}, the element of {dtype}"
            )
        if offset + size > self.bytes:
            raise ValueError(
                f"shape = {list(shape)}: {size} bytes from {offset} on; the buffer has "
                f"{self.bytes}"
            )
        return Tensor(self, dtype, self._array[offset : offset + size].view(item).reshape(shape))

    def free(self, timeout=None):
        """Gives the buffer back to the daemon, which waits for work that still uses it. Views in
        this process stay readable until they go; no one else sees them any more."""
        self._free(self, timeout)

    def __repr__(self):
        return f"<attnd.Buffer {self.handle}: {self.bytes} bytes>"


class Tensor(_Memory):
    """Numbers in a buffer, as a call names them.

    dtype   "f32", "f16", "bf16", …
    array   numpy view of the memory itself; bf16 and 8-bit floats as their bits (attnd.dtype). Of a
            GPU's memory there is none: read() and write() copy such arrays

    torch.from_dlpack(tensor) and the like take the memory itself, bf16 as bf16 and 8-bit floats as
    u8; numpy has no bf16, so np.from_dlpack() refuses it. The memory stays mapped as long as theirs.

    Indexing as of numpy gives a Tensor of the part (q[:5]) as long as it is a view.
    """

    def __init__(self, buffer, dtype, array):
        super().__init__(array, buffer.is_device)
        self.buffer = buffer
        self.dtype = dtype

    def __dlpack__(self, **options):
        return dlpack.capsule(self._array, self.dtype, self.is_device, **options)

    @property
    def shape(self):
        return self._array.shape

    @property
    def offset(self):
        """Bytes from the buffer's start to the first element."""
        return _address(self._array) - _address(self.buffer._array)  # pylint: disable=protected-access

    @property
    def strides(self):
        """Bytes."""
        return self._array.strides

    def __getitem__(self, index):
        part = self._array[index]
        basic = index if isinstance(index, tuple) else (index,)
        if not (
            isinstance(part, np.ndarray)
            and all(isinstance(i, (int, slice, type(Ellipsis))) for i in basic)
        ):
            raise TypeError(f"index = {index!r}: slices, so that the part is still a view")
        return Tensor(self.buffer, self.dtype, part)

    def set(self, values):
        """Stores values (float32 or what converts), rounded to nearest even; broadcasts."""
        self.write(dtypes.encode(values, self.dtype))

    def float32(self):
        """A copy of the numbers as float32."""
        return dtypes.decode(self.read() if self.is_device else self._array, self.dtype)

    def flat(self):
        """The same memory in one dimension; ValueError when it has gaps."""
        if not self._array.flags.c_contiguous:
            raise ValueError(f"shape = {list(self.shape)}: has gaps, cannot be one dimension")
        return Tensor(self.buffer, self.dtype, self._array.reshape(-1))

    def fill(self, message):
        """Writes itself into a Tensor message of attnd.proto."""
        message.buffer = self.buffer.handle
        message.offset = self.offset
        message.dtype = wire.ENUMS["Dtype"][self.dtype]
        message.shape.extend(self.shape)
        if not self._array.flags.c_contiguous:
            message.strides.extend(self.strides)

    def __repr__(self):
        return f"<attnd.Tensor {self.dtype}{list(self.shape)} in buffer {self.buffer.handle}>"


def _whole_parts(array, copy):
    """Yields (part of array without gaps, the same part of copy)."""
    if array.flags.c_contiguous:
        yield array, copy
        return
    for i in range(len(array)):
        yield from _whole_parts(array[i, ...], copy[i, ...])


def _address(array):
    return array.__array_interface__["data"][0]
