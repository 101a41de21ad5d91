"""test_protocol_page.py: every byte of proto/protocol.md is what attnd.proto and a real daemon say."""

import array
import math
import mmap
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("ATTND_BUILD") or os.path.join(ROOT, "build", "release")
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))

import tap
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SESSION = 0x0123456789ABCDEF  # the page's, in place of the daemon's random ones
INSTANCE = 0xFEDCBA9876543210
FENCE = re.compile(r"^```hex name=(\S+)(?: message=(\S+))?\n(.*?)^```$", re.M | re.S)
LINE = re.compile(r"^((?:[0-9a-f]{2} )*[0-9a-f]{2})(?: {2,}(.*))?$")
ROW = re.compile(r"^\| `([A-Z0-9_]+)` \| `?(\w+)`? \|", re.M)


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def load_messages():
    """{"Request": class, …}"""
    with open(os.path.join(BUILD, "python", "attnd", "attnd.desc"), "rb") as file:
        files = descriptor_pb2.FileDescriptorSet.FromString(file.read())
    pool = descriptor_pool.DescriptorPool()
    for proto in files.file:
        pool.AddSerializedFile(proto.SerializeToString())
    found = {}
    for name in ("Request", "Reply", "FdRequest", "FdReply"):
        descriptor = pool.FindMessageTypeByName(f"attnd.v1.{name}")
        if hasattr(message_factory, "GetMessageClass"):
            found[name] = message_factory.GetMessageClass(descriptor)
        else:
            found[name] = message_factory.MessageFactory(pool).GetPrototype(descriptor)
    return found


class Example:
    """A fence: its bytes, and each line's bytes and words."""

    def __init__(self, message, body):
        self.message = message
        self.lines = []
        for line in body.splitlines():
            match = LINE.match(line)
            assert match, f"neither bytes nor words: {line!r}"
            self.lines.append((bytes.fromhex(match.group(1)), match.group(2) or ""))
        self.bytes = b"".join(raw for raw, _ in self.lines)


PAGE = read("proto", "protocol.md")
MESSAGES = load_messages()
EXAMPLES = {name: Example(message, body) for name, message, body in FENCE.findall(PAGE)}


def parsed(name):
    example = EXAMPLES[name]
    return MESSAGES[example.message].FromString(example.bytes)


# ---- The page and attnd.proto ----------------------------------------------------------------


def value_at(message, path):
    """The value of "attend.batch.tables[0].width" as the page writes it."""
    field = None
    for step in re.findall(r"[^.]+", path):
        name, _, index = step.partition("[")
        field = message.DESCRIPTOR.fields_by_name[name]
        message = getattr(message, name)
        if index:
            message = message[int(index[:-1])]
    if isinstance(message, bytes):
        return message.hex(" ")
    if isinstance(message, str):
        return f'"{message}"'
    if field.enum_type:
        return field.enum_type.values_by_number[message].name
    if message in (SESSION, INSTANCE):
        return f"0x{message:016x}"
    return str(list(message)) if field.label == field.LABEL_REPEATED else str(message)


def first_tag(raw):
    """(field number, wire type) at the start of a line."""
    value = shift = 0
    for byte in raw:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value >> 3, value & 7
    raise AssertionError(f"no tag: {raw.hex(' ')}")


def field_at(descriptor, path):
    for step in path.split("."):
        field = descriptor.fields_by_name[step.partition("[")[0]]
        descriptor = field.message_type
    return field


@tap.test
def the_page_has_every_example_of_the_conversation():
    for name in ("ping", "hello", "lease", "create-buffer", "fetch", "open-model", "attend", "create-plan", "step",
                 "update-plan", "after", "drop-plan", "merge", "goodbye"):
        assert f"{name}-request" in EXAMPLES and f"{name}-reply" in EXAMPLES, name
    assert "refused-reply" in EXAMPLES and "ping-frame" in EXAMPLES


@tap.test
def every_message_is_encoded_as_protobuf_encodes_it():
    for name, example in EXAMPLES.items():
        if example.message:
            tap.equal(parsed(name).SerializeToString(deterministic=True).hex(" "), example.bytes.hex(" "))


@tap.test
def every_line_says_what_its_bytes_say():
    n_values = n_messages = 0
    for name, example in EXAMPLES.items():
        if not example.message:
            continue
        message = parsed(name)
        for raw, words in example.lines:
            if " = " in words:
                path, _, value = words.partition(" = ")
                tap.equal((name, path, value_at(message, path)), (name, path, value))
                n_values += 1
            elif words:
                path, _, size = words.partition(": ")
                n = 0 if size == "nothing in it" else int(size.split()[0])
                inner = message
                for step in path.split("."):
                    part, _, index = step.partition("[")
                    inner = getattr(inner, part)
                    inner = inner[int(index[:-1])] if index else inner
                tap.equal((name, path, inner.ByteSize()), (name, path, n))
                n_messages += 1
            else:
                continue
            tap.equal((path, first_tag(raw)[0]), (path, field_at(message.DESCRIPTOR, path).number))
    assert n_values > 60 and n_messages > 20, (n_values, n_messages)


@tap.test
def frames_hold_the_messages():
    for frame, message in (("ping-frame", "ping-request"), ("ping-reply-frame", "ping-reply")):
        payload = EXAMPLES[message].bytes
        tap.equal(EXAMPLES[frame].bytes, struct.pack(">BQI", 1, len(payload) + 4, 0x80000001) + payload)


@tap.test
def the_tables_list_every_status_and_reason():
    types = read("proto", "types.h")
    statuses = re.search(r"#define ATTND_STATUS_MAP\(X\)(.*?)\n\n", types, re.S).group(1)
    reasons = re.search(r"#define ATTND_REASON_MAP\(X\)(.*?)\n\n", types, re.S).group(1)
    wanted = dict(re.findall(r"X\((\w+), (\d+),", statuses))
    wanted.update(re.findall(r"X\((\w+), \d+, (\w+)\)", reasons))
    del wanted["NO_REASON"]
    tap.equal(dict(ROW.findall(PAGE)), wanted)


# ---- The page and a daemon --------------------------------------------------------------------


def connected(path, kind):
    """A socket connected to path as soon as somebody listens there."""
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.settimeout(20)
    tap.until(lambda: sock.connect_ex(path) == 0, f"attnd listens on {path}", 30)
    return sock


class Conversation:
    """A client made of the page's bytes: only the session's number is put in where the page has its
    own."""

    def __init__(self, directory):
        self.session = SESSION
        self.n_requests = 0
        self.directory = directory
        self.data = None
        self.connect()
        self.buf = connected(os.path.join(directory, "buf"), socket.SOCK_SEQPACKET)

    def connect(self):
        """A new connection of the data socket, in place of the one there was."""
        if self.data:
            self.data.close()
        self.data = connected(os.path.join(self.directory, "data"), socket.SOCK_STREAM)
        self.data.sendall(EXAMPLES["greeting-sent"].bytes)
        tap.equal(self.read(8), EXAMPLES["greeting-received"].bytes)

    def close(self):
        self.data.close()
        self.buf.close()

    def read(self, n):
        got = b""
        while len(got) < n:
            more = self.data.recv(n - len(got))
            assert more, "the daemon closed the connection"
            got += more
        return got

    def with_session(self, raw):
        return raw.replace(SESSION.to_bytes(8, "little"), self.session.to_bytes(8, "little"))

    def call(self, request):
        """Sends bytes of a Request; the Reply, with the page's session and instance."""
        self.n_requests += 1
        number = 0x80000000 | self.n_requests
        payload = self.with_session(request)
        self.data.sendall(struct.pack(">BQI", 1, len(payload) + 4, number) + payload)
        kind, length, answered = struct.unpack(">BQI", self.read(13))
        tap.equal((kind, answered), (1, number))
        reply = MESSAGES["Reply"].FromString(self.read(length - 4))
        assert reply.instance
        reply.instance = INSTANCE
        return reply

    def exchange(self, name):
        """The example's packet; (FdReply, descriptor or None)."""
        self.buf.send(self.with_session(EXAMPLES[f"{name}-request"].bytes))
        packet, control, _, _ = self.buf.recvmsg(1024, socket.CMSG_SPACE(4))
        fds = array.array("i")
        for _, _, data in control:
            fds.frombytes(data)
        tap.equal(packet.hex(" "), EXAMPLES[f"{name}-reply"].bytes.hex(" "))
        return fds[0] if fds else None


def expect(reply, name):
    tap.equal(str(reply), str(parsed(name)))
    tap.equal(reply.SerializeToString(deterministic=True).hex(" "), EXAMPLES[name].bytes.hex(" "))


def expect_timed(reply, name):
    """expect(), but for the times, which are the page's own."""
    result, wanted = (getattr(one, one.WhichOneof("result")) for one in (reply, parsed(name)))
    result.queue_us, result.device_us = wanted.queue_us, wanted.device_us
    expect(reply, name)


def attention(q, keys, values):
    weights = [math.exp(sum(a * b for a, b in zip(q, key)) / 2) for key in keys]
    return [sum(w * value[i] for w, value in zip(weights, values)) / sum(weights) for i in range(4)]


def expect_floats(raw, wanted):
    got = struct.unpack(f"<{len(wanted)}f", raw)
    assert max(abs(a - b) for a, b in zip(got, wanted)) < 1e-5, (got, wanted)


def hold_plans(talk, memory, k, v):
    """The second and the third token of the page's sequence, whose first has k and v."""
    keys, values = [k], [v]
    tokens = []
    for at in (64, 128):
        q, key, value = ([0.5 * i - at / 64 for i in range(n, n + 4)] for n in (0, 3, 5))
        keys.append(key)
        values.append(value)
        memory[at : at + 48] = struct.pack("<12f", *q, *key, *value)
        tokens.append((at + 48, attention(q, keys, values)))

    expect(talk.call(EXAMPLES["create-plan-request"].bytes), "create-plan-reply")
    step = talk.call(EXAMPLES["step-request"].bytes)
    times = step.step.queue_us, step.step.device_us
    expect_timed(step, "step-reply")
    expect_floats(memory[tokens[0][0] : tokens[0][0] + 16], tokens[0][1])
    memory[tokens[0][0] : tokens[0][0] + 16] = b"\xff" * 16
    talk.connect()
    again = talk.call(EXAMPLES["step-request"].bytes)
    tap.equal((again.step.queue_us, again.step.device_us), times)
    expect_timed(again, "step-reply")
    tap.equal(memory[tokens[0][0] : tokens[0][0] + 16], b"\xff" * 16)

    expect(talk.call(EXAMPLES["update-plan-request"].bytes), "update-plan-reply")
    expect_timed(talk.call(EXAMPLES["after-request"].bytes), "after-reply")
    expect_floats(memory[tokens[1][0] : tokens[1][0] + 16], tokens[1][1])

    expect(talk.call(EXAMPLES["drop-plan-request"].bytes), "drop-plan-reply")

    memory[512:576] = struct.pack("<16f", 1, 2, 3, 4, 0, 0, 0, 0, 5, 6, 7, 8, 0, 0, 0, 0)
    expect_timed(talk.call(EXAMPLES["merge-request"].bytes), "merge-reply")
    expect_floats(memory[576:592], (3, 4, 5, 6))


def hold(talk):
    expect(talk.call(EXAMPLES["ping-request"].bytes), "ping-reply")

    hello = talk.call(EXAMPLES["hello-request"].bytes)
    wanted = parsed("hello-reply")
    talk.session, hello.hello.session = hello.hello.session, SESSION
    assert talk.session and set(wanted.hello.features) <= set(hello.hello.features)
    del hello.hello.features[:]
    hello.hello.features.extend(wanted.hello.features)
    hello.hello.device.name = wanted.hello.device.name
    hello.hello.version = wanted.hello.version
    expect(hello, "hello-reply")

    assert talk.exchange("lease") is None
    expect(talk.call(EXAMPLES["open-model-request"].bytes), "open-model-reply")
    expect(talk.call(EXAMPLES["create-buffer-request"].bytes), "create-buffer-reply")
    fd = talk.exchange("fetch")
    memory = mmap.mmap(fd, 4096)
    os.close(fd)
    q, k, v = (1.0, 2.0, 3.0, 4.0), (0.5, -1.0, 2.0, 0.25), (7.0, -8.0, 9.5, 0.125)
    memory[0:48] = struct.pack("<12f", *q, *k, *v)
    memory[48:64] = b"\xff" * 16

    refused = EXAMPLES["attend-request"].bytes
    for old, new in ((b"\x09\x05\0", b"\x09\x06\0"), (b"\x0a\x04\x03\0", b"\x0a\x04\x09\0")):
        tap.equal(refused.count(old), 1)
        refused = refused.replace(old, new)
    expect(talk.call(refused), "refused-reply")
    tap.equal(memory[48:64], b"\xff" * 16)

    attend = talk.call(EXAMPLES["attend-request"].bytes)
    expect_timed(attend, "attend-reply")
    tap.equal(struct.unpack("<4f", memory[48:64]), v)

    hold_plans(talk, memory, k, v)
    expect(talk.call(EXAMPLES["goodbye-request"].bytes), "goodbye-reply")
    late = talk.call(EXAMPLES["attend-request"].bytes)
    tap.equal(late.status.reason, "UNREGISTERED")


@tap.test
def a_client_made_of_the_page_gets_the_replies_of_the_page():
    program = os.path.join(BUILD, "bin", "attnd")
    if not os.path.exists(program):
        raise tap.Skip(f"there is no {program}")
    directory = tempfile.mkdtemp(prefix="attnd-page-")
    daemon = subprocess.Popen([program, "--no-keeper", f"--runtime.dir={directory}", "--device.backend=cpu", "--device.threads=2",
                               "--log.level=error"], stdin=subprocess.DEVNULL)
    try:
        talk = Conversation(directory)
        try:
            hold(talk)
        finally:
            talk.close()
    finally:
        daemon.terminate()
        daemon.wait(30)
        shutil.rmtree(directory, ignore_errors=True)


tap.main()
