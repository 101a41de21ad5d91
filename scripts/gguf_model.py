"""Reads a GGUF file: its fields, its tensors as float32, its byte-level BPE tokenizer.

    model = gguf_model.File("SmolLM2-135M-Instruct.Q4_1.gguf")
    model.fields["llama.block_count"], model.tensor("blk.0.attn_q.weight")

Only what small Llamas need: version 2 and 3, little-endian; F32, F16, BF16, Q8_0, Q4_0 and Q4_1.
"""

import mmap
import re
import struct

import numpy as np

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_BLOCK = 32  # values of a quantised block

# A block of 32: scale, offset, codes. Nibbles: the low ones are the first half.
_Q8_0 = np.dtype([("scale", "<f2"), ("codes", "i1", _BLOCK)])
_Q4_0 = np.dtype([("scale", "<f2"), ("codes", "u1", _BLOCK // 2)])
_Q4_1 = np.dtype([("scale", "<f2"), ("offset", "<f2"), ("codes", "u1", _BLOCK // 2)])


def _nibbles(codes):
    return np.concatenate((codes & 15, codes >> 4), axis=1).astype(np.float32)


def _from_q8_0(blocks):
    return blocks["codes"] * blocks["scale"].astype(np.float32)[:, None]


def _from_q4_0(blocks):
    return (_nibbles(blocks["codes"]) - 8) * blocks["scale"].astype(np.float32)[:, None]


def _from_q4_1(blocks):
    scale, offset = (blocks[name].astype(np.float32)[:, None] for name in ("scale", "offset"))
    return _nibbles(blocks["codes"]) * scale + offset


# By ggml's number: name, dtype of an item, values of an item, items → float32.
_TYPES = {
    0: ("F32", np.dtype("<f4"), 1, lambda x: x.astype(np.float32)),
    1: ("F16", np.dtype("<f2"), 1, lambda x: x.astype(np.float32)),
    2: ("Q4_0", _Q4_0, _BLOCK, _from_q4_0),
    3: ("Q4_1", _Q4_1, _BLOCK, _from_q4_1),
    8: ("Q8_0", _Q8_0, _BLOCK, _from_q8_0),
    30: ("BF16", np.dtype("<u2"), 1, lambda x: (x.astype(np.uint32) << 16).view(np.float32)),
}


class File:
    """A file, mapped. ValueError for one that is not GGUF, ends early or has tensors of other kinds.

    fields   {"llama.block_count": 30, …}
    """

    def __init__(self, path):
        self._path = path
        with open(path, "rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        try:
            self._read()
        except struct.error:
            raise ValueError(f"model = {path}: ends within its header") from None

    def _read(self):
        magic, version, n_tensors, n_fields = (self._take(f) for f in ("4s", "I", "Q", "Q"))
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"model = {self._path}: not GGUF version 2 or 3")
        self.fields = {}
        for _ in range(n_fields):
            name = self._string()
            self.fields[name] = self._value(self._take("I"))
        self._tensors = {}
        for _ in range(n_tensors):
            name = self._string()
            dims = [self._take("Q") for _ in range(self._take("I"))]
            self._tensors[name] = (dims[::-1], self._take("I"), self._take("Q"))
        align = self.fields.get("general.alignment", 32)
        self._first = -(-self._at // align) * align

    def _take(self, form):
        (value,) = struct.unpack_from("<" + form, self._data, self._at)
        self._at += struct.calcsize("<" + form)
        return value

    def _string(self):
        return self._take(f"{self._take('Q')}s").decode("utf-8", "replace")

    def _value(self, kind):
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            item, n = self._take("I"), self._take("Q")
            return [self._value(item) for _ in range(n)]
        if kind not in _SCALARS:
            raise ValueError(f"model = {self._path}: a field has the unknown type {kind}")
        return self._take(_SCALARS[kind])

    def tensor(self, name):
        """A tensor as float32, outermost dimension first."""
        if name not in self._tensors:
            raise ValueError(f"model = {self._path}: has no tensor {name}")
        shape, kind, offset = self._tensors[name]
        if kind not in _TYPES:
            known = ", ".join(one[0] for one in _TYPES.values())
            raise ValueError(f"{name} = type {kind}: {known} are read")
        _, item, n_values, decode = _TYPES[kind]
        n, first = int(np.prod(shape)), self._first + offset
        if n % n_values or first + n // n_values * item.itemsize > len(self._data):
            raise ValueError(f"{name} = {shape}: the file ends within it")
        items = np.frombuffer(self._data, item, n // n_values, first)
        return decode(items).reshape(shape)


# ---- Llama ---------------------------------------------------------------------------------------

# generate.py's names of a layer's tensors and the file's.
_LAYER = {
    "norm_attention": "attn_norm",
    "wq": "attn_q",
    "wk": "attn_k",
    "wv": "attn_v",
    "wo": "attn_output",
    "norm_ffn": "ffn_norm",
    "w1": "ffn_gate",
    "w2": "ffn_down",
    "w3": "ffn_up",
}


def llama(path, progress=None):
    """(settings of generate.py's Config, weights, tokenizer) of a Llama whose classifier is its
    embedding. progress(done, of) is called as layers are read. q and k of such files are for
    adjacent channels that rotate."""
    file = File(path)
    fields = file.fields
    if fields.get("general.architecture") != "llama" or "output.weight" in file._tensors:
        raise ValueError(f"model = {path}: no Llama with a tied classifier")
    n_layers = fields["llama.block_count"]
    settings = {
        "dim": fields["llama.embedding_length"],
        "hidden": fields["llama.feed_forward_length"],
        "n_layers": n_layers,
        "n_heads": fields["llama.attention.head_count"],
        "n_kv_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.embedding_length"] // fields["llama.attention.head_count"],
        "n_vocab": len(fields["tokenizer.ggml.tokens"]),
        "max_len": fields["llama.context_length"],
        "theta": fields["llama.rope.freq_base"],
        "eps": fields["llama.attention.layer_norm_rms_epsilon"],
    }
    weights = {
        "embedding": file.tensor("token_embd.weight"),
        "norm": file.tensor("output_norm.weight"),
    }
    for layer in range(n_layers):
        for ours, theirs in _LAYER.items():
            one = file.tensor(f"blk.{layer}.{theirs}.weight")
            if layer == 0:
                weights[ours] = np.empty((n_layers, *one.shape), np.float32)
            weights[ours][layer] = one
        if progress:
            progress(layer + 1, n_layers)
    return settings, weights, Tokenizer(fields)


# ---- Tokens --------------------------------------------------------------------------------------


def _byte_letters():
    """The letter that stands for each byte in a byte-level vocabulary: printable ones for
    themselves, the others from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, spare = {byte: chr(byte) for byte in plain}, 256
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(spare)
            spare += 1
    return letters


class Tokenizer:
    """Byte-level BPE with GPT-2's words, digits one by one (tokenizer.ggml.pre = "smollm")."""

    _WORDS = re.compile(
        r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+|\d| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+"
    )

    def __init__(self, fields):
        if fields.get("tokenizer.ggml.model") != "gpt2":
            raise ValueError(
                f"tokenizer = {fields.get('tokenizer.ggml.model')}: byte-level BPE (gpt2) is read"
            )
        self._pieces = fields["tokenizer.ggml.tokens"]
        self._ids = {piece: number for number, piece in enumerate(self._pieces)}
        self._ranks = {
            tuple(merge.split(" ")): rank
            for rank, merge in enumerate(fields["tokenizer.ggml.merges"])
        }
        self._letters = _byte_letters()
        self._bytes = {letter: byte for byte, letter in self._letters.items()}
        self._template = fields.get("tokenizer.chat_template", "")
        self.eos = fields.get("tokenizer.ggml.eos_token_id", -1)

    @classmethod
    def words(cls, text):
        """What is merged apart; the digits are cut out first, so that a space stays behind them."""
        parts = re.split(r"(\d)", text)
        return [word for part in parts for word in cls._WORDS.findall(part)]

    def encode(self, text):
        tokens = []
        for word in self.words(text):
            letters = [self._letters[byte] for byte in word.encode()]
            tokens += [self._ids[piece] for piece in self._merge(letters)]
        return tokens

    def _merge(self, pieces):
        while len(pieces) > 1:
            pairs = list(zip(pieces, pieces[1:]))
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            merged, i = [], 0
            while i < len(pieces):
                if tuple(pieces[i : i + 2]) == best:
                    merged.append(pieces[i] + pieces[i + 1])
                    i += 2
                else:
                    merged.append(pieces[i])
                    i += 1
            pieces = merged
        return pieces

    def decode(self, token, previous):
        piece = self._pieces[token]
        if not all(letter in self._bytes for letter in piece):
            return piece.encode()
        return bytes(self._bytes[letter] for letter in piece)

    def chat(self, question):
        """The tokens of a question put to an instructed model, up to where its answer begins."""
        start, end = "<|im_start|>", "<|im_end|>"
        if start not in self._template or start not in self._ids or end not in self._ids:
            raise ValueError("chat = ChatML: this model has another template, or none")
        system = re.search(r"<\|im_start\|>system\n(.*?)<\|im_end\|>", self._template, re.S)
        turns = [("system", system.group(1))] if system else []
        tokens = []
        for role, text in [*turns, ("user", question)]:
            tokens += [self._ids[start], *self.encode(f"{role}\n{text}")]
            tokens += [self._ids[end], *self.encode("\n")]
        return [*tokens, self._ids[start], *self.encode("assistant\n")]
