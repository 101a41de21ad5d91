"""The messages of attnd.proto, made at import from the descriptor set beside this file.

attnd.desc is protoc's own output and no code is generated, so any protobuf runtime from 3.21 on
will do. The pool is private: another copy of attnd.proto in the process does no harm.
"""

import difflib
import os
import reprlib
from collections.abc import Mapping

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from . import error


def _load(path):
    with open(path, "rb") as file:
        files = descriptor_pb2.FileDescriptorSet.FromString(file.read())
    pool = descriptor_pool.DescriptorPool()
    for proto in files.file:
        pool.AddSerializedFile(proto.SerializeToString())
    return pool


_POOL = _load(os.path.join(os.path.dirname(os.path.abspath(__file__)), "attnd.desc"))
_PACKAGE = "attnd.v1."


def message_class(name):
    """The class of a message of attnd.proto: message_class("Request")."""
    descriptor = _POOL.FindMessageTypeByName(_PACKAGE + name)
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(_POOL).GetPrototype(descriptor)


Request = message_class("Request")
Reply = message_class("Reply")
FdRequest = message_class("FdRequest")
FdReply = message_class("FdReply")


def _names(enum):
    """{"bf16": 3, …}: the names people write, without the prefix that all of an enum share."""
    shared = os.path.commonprefix([value.name for value in enum.values])
    prefix = shared[: shared.rfind("_") + 1]
    return {value.name[len(prefix) :].lower(): value.number for value in enum.values}


ENUMS = {
    name: _names(_POOL.FindEnumTypeByName(_PACKAGE + name))
    for name in (
        "Dtype",
        "LayerKind",
        "Layout",
        "Owner",
        "RopePairing",
        "RopeScaling",
        "Mask",
        "Keys",
        "FdKind",
    )
}
CODES = {value.number: value.name for value in _POOL.FindEnumTypeByName(_PACKAGE + "Code").values}


def _nearest(word, words):
    near = difflib.get_close_matches(word, words, 1, 0.4)
    return f"; did you mean {near[0]!r}?" if near else ""


def enum_number(enum, value, where):
    """The number of a name in small letters without prefix ("bf16"); a number stays as it is.

    Raises ValueError for a name that the enum does not have.
    """
    if not isinstance(value, str):
        return int(value)
    names = ENUMS[enum]
    if value not in names:
        raise ValueError(f"{where} = {reprlib.repr(value)}: one of {', '.join(names)}")
    return names[value]


def _is_repeated(field):
    if hasattr(field, "is_repeated"):
        return field.is_repeated
    return field.label == field.LABEL_REPEATED


def parse(cls, data, where):
    """Bytes → message; Error INTERNAL for bytes that are none."""
    try:
        return cls.FromString(data)
    except DecodeError:
        raise error.Error(
            "INTERNAL", "BROKEN", where, f"{where} = {len(data)} bytes: not a {cls.DESCRIPTOR.name}"
        ) from None


def status_error(status):
    """The Error of a Status that is not OK."""
    code = CODES.get(status.code, f"CODE_{status.code}")
    return error.Error(code, status.reason, status.field, status.message)


def fill(message, values, where=""):
    """Sets fields of message from a mapping of its field names; None leaves a field unset.

    A sub-message is a mapping, a repeated field a list, an enum its name in small letters without
    prefix or its number. Raises ValueError for a field that message does not have and for two of a
    oneof, and what the runtime raises (TypeError, ValueError) for a value that does not fit; every
    text names the field from where on.
    """
    fields = message.DESCRIPTOR.fields_by_name
    for name, value in values.items():
        path = f"{where}.{name}" if where else name
        if name not in fields:
            raise ValueError(
                f"{path} = {reprlib.repr(value)}: no such field{_nearest(name, fields)}"
            )
        if value is None:
            continue
        oneof = fields[name].containing_oneof
        other = oneof and message.WhichOneof(oneof.name)
        if other:
            raise ValueError(
                f"{path} = {reprlib.repr(value)}: {other} is given too, only one can be"
            )
        _fill_field(message, fields[name], value, path)


def _fill_field(message, field, value, path):
    if _is_repeated(field):
        target = getattr(message, field.name)
        for i, item in enumerate(value):
            if field.message_type:
                _fill_message(target.add(), item, f"{path}[{i}]")
            else:
                target.append(item)
    elif field.message_type:
        target = getattr(message, field.name)
        target.SetInParent()
        _fill_message(target, value, path)
    else:
        if field.enum_type:
            value = enum_number(field.enum_type.name, value, path)
        try:
            setattr(message, field.name, value)
        except (TypeError, ValueError) as wrong:
            raise type(wrong)(f"{path} = {reprlib.repr(value)}: {wrong}") from None


def _fill_message(message, value, path):
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{path} = {reprlib.repr(value)}: a mapping of {message.DESCRIPTOR.name}'s fields"
        )
    fill(message, value, path)
