"""test_python_gguf.py: GGUF files: every kind of field and tensor, what is refused, the tokenizer."""

import os
import struct
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "scripts"), os.path.join(ROOT, "tests", "support")]

import numpy as np
import tap

import gguf_model
from models import generate

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMS = {
    U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q",
    I64: "q", F64: "d",
}  # fmt: skip


def string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(kind, item):
    if kind == STRING:
        return string(item)
    if kind == ARRAY:
        inner, items = item
        return struct.pack("<IQ", inner, len(items)) + b"".join(value(inner, i) for i in items)
    return struct.pack("<" + FORMS[kind], item)


def gguf_bytes(fields, tensors):
    """fields {name: (kind, value)}, tensors {name: (shape, kind, bytes)}."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields))
    for name, (kind, item) in fields.items():
        head += string(name) + struct.pack("<I", kind) + value(kind, item)
    data = b""
    for name, (shape, kind, raw) in tensors.items():
        head += string(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}QIQ", *shape[::-1], kind, len(data))
        data += raw.ljust(-(-len(raw) // 32) * 32, b"\0")
    return head.ljust(-(-len(head) // 32) * 32, b"\0") + data


class Written:
    """A file with these bytes, for a with block: its path."""

    def __init__(self, data):
        self.data = data

    def __enter__(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf", delete=False) as file:
            file.write(self.data)
            self.path = file.name
        return self.path

    def __exit__(self, *_):
        os.unlink(self.path)


def refused(data, use=gguf_model.File):
    with Written(data) as path:
        wrong = str(tap.raises(ValueError, use, path))
        return wrong.replace(path, "FILE")


# ---- Files ---------------------------------------------------------------------------------------


@tap.test
def every_kind_of_field_is_read():
    fields = {
        "u8": (U8, 255), "i8": (I8, -1), "u16": (U16, 65535), "i16": (I16, -2), "u32": (U32, 7),
        "i32": (I32, -7), "f32": (F32, 1.5), "yes": (BOOL, True), "u64": (U64, 2**63),
        "i64": (I64, -(2**62)), "f64": (F64, 0.1), "text": (STRING, "Ġ né"),
        "names": (ARRAY, (STRING, ["a", "bc"])), "rows": (ARRAY, (ARRAY, [(I32, [1, 2]), (I32, [])])),
    }  # fmt: skip
    with Written(gguf_bytes(fields, {})) as path:
        got = gguf_model.File(path).fields
    wanted = {name: item for name, (kind, item) in fields.items() if kind != ARRAY}
    tap.equal(got, {**wanted, "names": ["a", "bc"], "rows": [[1, 2], []]})


@tap.test
def every_kind_of_tensor_is_read_where_it_lies():
    rng = np.random.default_rng(3)
    values = rng.normal(size=(2, 64)).astype("<f4")
    codes = rng.integers(0, 16, (4, 32))
    packed = (codes[:, :16] | codes[:, 16:] << 4).astype("u1")
    scale, offset = (rng.normal(size=4).astype("<f2") for _ in range(2))
    signed = rng.integers(-128, 128, (4, 32)).astype("i1")
    q4_1 = b"".join(s.tobytes() + o.tobytes() + p.tobytes() for s, o, p in zip(scale, offset, packed))
    q4_0 = b"".join(s.tobytes() + p.tobytes() for s, p in zip(scale, packed))
    q8_0 = b"".join(s.tobytes() + q.tobytes() for s, q in zip(scale, signed))
    wide, low = scale.astype("f4")[:, None], offset.astype("f4")[:, None]
    tensors = {
        "f32": ((2, 64), 0, values.tobytes(), values),
        "f16": ((2, 64), 1, values.astype("<f2").tobytes(), values.astype("<f2").astype("f4")),
        "q4_0": ((2, 64), 2, q4_0, ((codes - 8) * wide).reshape(2, 64)),
        "q4_1": ((4, 32), 3, q4_1, codes * wide + low),
        "q8_0": ((128,), 8, q8_0, (signed * wide).reshape(128)),
        "bf16": ((3,), 30, struct.pack("<3H", 0x3F80, 0xC000, 0x3E00), np.array([1, -2, 0.125])),
    }
    data = gguf_bytes({"general.alignment": (U32, 32)}, {n: t[:3] for n, t in tensors.items()})
    with Written(data) as path:
        file = gguf_model.File(path)
        for name, (shape, _, _, wanted) in tensors.items():
            got = file.tensor(name)
            tap.equal((name, got.dtype, got.shape), (name, np.float32, shape))
            assert np.array_equal(got, wanted.astype("f4")), name


@tap.test
def what_is_no_such_file_is_refused_by_name():
    good = gguf_bytes({"a": (STRING, "text")}, {"w": ((64,), 0, bytes(256))})
    with Written(good) as path:
        tap.equal(gguf_model.File(path).tensor("w").sum(), 0.0)
        wrong = tap.raises(ValueError, gguf_model.File(path).tensor, "x")
        tap.equal(str(wrong), f"model = {path}: has no tensor x")
    tap.equal(refused(b"GGML" + good[4:]), "model = FILE: not GGUF version 2 or 3")
    tap.equal(refused(good[:4] + b"\x01" + good[5:]), "model = FILE: not GGUF version 2 or 3")
    n_head = len(gguf_bytes({"a": (STRING, "text")}, {})) // 2
    for cut in range(1, n_head):
        assert refused(good[:cut]) in (
            "model = FILE: ends within its header",
            "model = FILE: not GGUF version 2 or 3",
        ), cut
    tap.equal(
        refused(gguf_bytes({"a": (STRING, "")}, {}).replace(b"a\x08", b"a\x63")),
        "model = FILE: a field has the unknown type 99",
    )
    tap.equal(
        refused(good[:-1], lambda path: gguf_model.File(path).tensor("w")),
        "w = [64]: the file ends within it",
    )
    other = gguf_bytes({}, {"w": ((64,), 13, bytes(256))})
    tap.equal(
        refused(other, lambda path: gguf_model.File(path).tensor("w")),
        "w = type 13: F32, F16, Q4_0, Q4_1, Q8_0, BF16 are read",
    )
    odd = gguf_bytes({}, {"w": ((33,), 8, bytes(256))})
    tap.equal(
        refused(odd, lambda path: gguf_model.File(path).tensor("w")),
        "w = [33]: the file ends within it",
    )


# ---- Tokens --------------------------------------------------------------------------------------

LETTERS = gguf_model._byte_letters()
MERGES = ["h e", "l l", "Ġ w", "he ll", "hell o", "Ġw o"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PIECES = [*SPECIAL, *LETTERS.values(), *(merge.replace(" ", "") for merge in MERGES)]
TEMPLATE = "{% if %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
TOKENS = {
    "tokenizer.ggml.model": (STRING, "gpt2"),
    "tokenizer.ggml.tokens": (ARRAY, (STRING, PIECES)),
    "tokenizer.ggml.merges": (ARRAY, (STRING, MERGES)),
    "tokenizer.ggml.eos_token_id": (U32, 2),
    "tokenizer.chat_template": (STRING, TEMPLATE),
}


def tokenizer(**changes):
    fields = {name: kind_value[1] for name, kind_value in TOKENS.items()}
    for name in ("tokens", "merges"):
        fields[f"tokenizer.ggml.{name}"] = fields[f"tokenizer.ggml.{name}"][1]
    return gguf_model.Tokenizer({**fields, **changes})


def pieces(text):
    return [PIECES[token] for token in tokenizer().encode(text)]


@tap.test
def the_best_pair_is_merged_first_and_words_stay_apart():
    tap.equal(pieces("hello wow"), ["hello", "Ġwo", "w"])
    tap.equal(pieces("hehe"), ["he", "he"])
    tap.equal(pieces("a\n\nb"), ["a", "Ċ", "Ċ", "b"])
    tap.equal(pieces("é"), ["Ã", "©"])
    tap.equal(pieces(""), [])


def words(text):
    return gguf_model.Tokenizer.words(text)


@tap.test
def words_are_cut_as_smollm_cuts_them():
    tap.equal(words("I've 12  apples."), ["I", "'ve", " ", "1", "2", " ", " apples", "."])
    tap.equal(words("x_1 = y;  \n z"), ["x", "_", "1", " =", " y", ";", "  \n", " z"])
    tap.equal(words("Straße, naïve"), ["Straße", ",", " naïve"])
    tap.equal(words("end   7"), ["end", "   ", "7"])


@tap.test
def every_text_comes_back():
    one = tokenizer()
    for text in ("Hello, world! 123", "Grüße, 你好 \U0001f600", "\t tabs\r\n", "it's _x_ = {1: '2'}"):
        tokens = one.encode(text)
        tap.equal(b"".join(one.decode(token, 0) for token in tokens).decode(), text)
    tap.equal(one.decode(1, 0), b"<|im_start|>")
    tap.equal(one.eos, 2)


@tap.test
def a_question_is_put_as_the_template_says():
    one = tokenizer()
    text = b"".join(one.decode(token, 0) for token in one.chat("hello?")).decode()
    tap.equal(
        text,
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhello?<|im_end|>\n"
        "<|im_start|>assistant\n",
    )
    tap.equal(one.chat("x").count(1), 3)
    wrong = tap.raises(ValueError, tokenizer(**{"tokenizer.chat_template": "[INST]"}).chat, "x")
    tap.equal(str(wrong), "chat = ChatML: this model has another template, or none")
    wrong = tap.raises(ValueError, tokenizer, **{"tokenizer.ggml.model": "llama"})
    tap.equal(str(wrong), "tokenizer = llama: byte-level BPE (gpt2) is read")


# ---- A whole model -------------------------------------------------------------------------------

DIM, HIDDEN, N_LAYERS, N_HEADS, N_KV_HEADS = 16, 32, 2, 4, 2


def tiny_llama(**more):
    """(fields, tensors, weights by generate.py's names) of a Llama drawn from a seed."""
    rng = np.random.default_rng(9)
    kv = DIM // N_HEADS * N_KV_HEADS
    shapes = {
        "norm_attention": (DIM,), "wq": (DIM, DIM), "wk": (kv, DIM), "wv": (kv, DIM),
        "wo": (DIM, DIM), "norm_ffn": (DIM,), "w1": (HIDDEN, DIM), "w2": (DIM, HIDDEN),
        "w3": (HIDDEN, DIM),
    }  # fmt: skip
    weights = {n: rng.normal(size=(N_LAYERS, *s)).astype("f4") for n, s in shapes.items()}
    weights["embedding"] = rng.normal(size=(len(PIECES), DIM)).astype("f4")
    weights["norm"] = rng.normal(size=DIM).astype("f4")
    tensors = {
        "token_embd.weight": weights["embedding"],
        "output_norm.weight": weights["norm"],
    }
    for layer in range(N_LAYERS):
        for ours, theirs in gguf_model._LAYER.items():
            tensors[f"blk.{layer}.{theirs}.weight"] = weights[ours][layer]
    fields = {
        "general.architecture": (STRING, "llama"),
        "llama.block_count": (U32, N_LAYERS),
        "llama.embedding_length": (U32, DIM),
        "llama.feed_forward_length": (U32, HIDDEN),
        "llama.attention.head_count": (U32, N_HEADS),
        "llama.attention.head_count_kv": (U32, N_KV_HEADS),
        "llama.context_length": (U32, 64),
        "llama.rope.freq_base": (F32, 5000.0),
        "llama.attention.layer_norm_rms_epsilon": (F32, 1e-6),
        **TOKENS,
        **more,
    }
    raw = {name: (t.shape, 0, t.astype("<f4").tobytes()) for name, t in tensors.items()}
    return fields, raw, weights


@tap.test
def a_llama_is_loaded_with_every_weight_in_its_place():
    fields, tensors, wanted = tiny_llama()
    seen = []
    with Written(gguf_bytes(fields, tensors)) as path:
        config, weights, pieces_of = generate.load(path, progress=lambda *at: seen.append(at))
    tap.equal(seen, [(1, 2), (2, 2)])
    tap.equal(
        (config.dim, config.hidden, config.n_layers, config.n_heads, config.n_kv_heads),
        (DIM, HIDDEN, N_LAYERS, N_HEADS, N_KV_HEADS),
    )
    tap.equal((config.head_dim, config.n_vocab, config.max_len), (4, len(PIECES), 64))
    tap.equal((config.theta, float(np.float32(1e-6))), (5000.0, config.eps))
    tap.equal(set(weights), set(wanted))
    for name, weight in wanted.items():
        assert np.array_equal(weights[name], weight), name
    prompt = pieces_of.encode("hello wow")
    attention = generate.open_attention("local", config, "f32", "client", [prompt], 4)
    tap.equal(len(list(generate.generate(config, weights, attention, [prompt], 4))), 4)


@tap.test
def what_is_no_llama_with_a_tied_classifier_is_refused():
    fields, tensors, _ = tiny_llama(**{"general.architecture": (STRING, "gpt2")})
    tap.equal(
        refused(gguf_bytes(fields, tensors), generate.load),
        "model = FILE: no Llama with a tied classifier",
    )
    fields, tensors, _ = tiny_llama()
    tensors["output.weight"] = ((1,), 0, bytes(4))
    tap.equal(
        refused(gguf_bytes(fields, tensors), generate.load),
        "model = FILE: no Llama with a tied classifier",
    )


tap.main()
