#!/usr/bin/env python3
"""Text from a Llama-family model: the model runs here, in numpy; its attention runs in attnd.

    generate.py --model tests/data/austen1m.bf16.bin --prompt "Mr. Darcy was" --prompt "She could"

All prompts are one batch: a prefill, then a decode step a token, each a plan and a Step a layer by it,
with paged KV in a pool whose blocks this program hands out, in shuffled order. --attention local computes attention
here instead, without attnd and without its code, rounding q, k, v and the output to the same dtype:
the tokens must be the same.

Models: austen1m (tests/data), llama2.c's version 0 (stories260K.bin with tok512.bin beside it), and
Llamas in GGUF files whose classifier is their embedding (SmolLM2; scripts/gguf_model.py). With --chat a
prompt is a question to an instructed model, and the text ends with its answer.
"""

import argparse
import codecs
import os
import struct
import sys
import time
from dataclasses import dataclass

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.environ.get("ATTND_BUILD", os.path.join(ROOT, "build", "release"))
sys.path.append(os.path.join(BUILD, "python"))  # behind an installed one
sys.path.append(os.path.join(ROOT, "scripts"))
try:
    import attnd
except ImportError as missing:
    attnd, NO_ATTND = None, missing  # --attention local does without
import gguf_model

BLOCK_SIZE = 16  # tokens


# ---- Model files ---------------------------------------------------------------------------------


@dataclass
class Config:
    dim: int
    hidden: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_vocab: int
    max_len: int  # tokens
    theta: float = 10000.0
    eps: float = 1e-5


AUSTEN_MAGIC = 0x314D4C54  # "TLM1"


def load(path, tokenizer=None, progress=None):
    """(Config, weights, tokenizer) of a model file; ValueError for a file that is none.
    progress(done, of) is called while a large one is read."""
    with open(path, "rb") as file:
        if file.read(4) == b"GGUF":
            settings, weights, pieces = gguf_model.llama(path, progress)
            return Config(**settings), weights, pieces
        file.seek(0)
        data = file.read()
    head = struct.unpack_from("<9i", data.ljust(36, b"\0"))
    if head[0] == AUSTEN_MAGIC:
        config = Config(
            dim=head[1],
            hidden=head[2],
            n_layers=head[3],
            n_heads=head[4],
            n_kv_heads=head[5],
            head_dim=head[6],
            n_vocab=head[7],
            max_len=head[8],
        )
        bits = np.frombuffer(data[: len(data) & ~1], "<u2", offset=36)
        values = (bits.astype(np.uint32) << 16).view(np.float32)
        return config, cut(path, values, config, 0), Bytes()
    dim, hidden, n_layers, n_heads, n_kv_heads, vocab, max_len = head[:7]
    # No sane count is negative or beyond 2^24: what has one is another kind of file.
    if not all(
        0 < n < 1 << 24 for n in (dim, hidden, n_layers, n_heads, n_kv_heads, vocab, max_len)
    ):
        raise ValueError(
            f"model = {path}: neither austen1m nor llama2.c version 0 with a tied classifier"
        )
    config = Config(dim, hidden, n_layers, n_heads, n_kv_heads, dim // n_heads, vocab, max_len)
    values = np.frombuffer(data[: len(data) & ~3], "<f4", offset=28)
    unused = max_len * config.head_dim  # old tables of cosines and sines
    name = tokenizer or os.path.join(os.path.dirname(path), f"tok{vocab}.bin")
    return config, cut(path, values, config, unused), Pieces(name, vocab)


def cut(path, values, c, unused):
    """The tensors of a file, every one [layers] first but the embedding and the last norm."""
    q, kv = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    shapes = {
        "embedding": (c.n_vocab, c.dim),
        "norm_attention": (c.n_layers, c.dim),
        "wq": (c.n_layers, q, c.dim),
        "wk": (c.n_layers, kv, c.dim),
        "wv": (c.n_layers, kv, c.dim),
        "wo": (c.n_layers, c.dim, q),
        "norm_ffn": (c.n_layers, c.dim),
        "w1": (c.n_layers, c.hidden, c.dim),
        "w2": (c.n_layers, c.dim, c.hidden),
        "w3": (c.n_layers, c.hidden, c.dim),
        "norm": (c.dim,),
    }
    wanted = sum(int(np.prod(shape)) for shape in shapes.values()) + unused
    if values.size != wanted:
        raise ValueError(f"model = {path}: {values.size} weights; its header says {wanted}")
    weights, at = {}, 0
    for name, shape in shapes.items():
        n = int(np.prod(shape))
        weights[name] = values[at : at + n].reshape(shape)
        at += n
    return weights


class Bytes:
    """A token is a byte."""

    def encode(self, text):
        return list(text.encode())

    def decode(self, token, previous):
        return bytes([token])


class Pieces:
    """llama2.c's tokenizer file: pieces with scores; the best pair is merged again and again."""

    BOS = 1

    def __init__(self, path, n_vocab):
        with open(path, "rb") as file:
            data = file.read()
        self.pieces, self.scores, at = [], [], 4
        for i in range(n_vocab):
            if at + 8 > len(data):
                raise ValueError(f"tokenizer = {path}: ends after {i} of {n_vocab} pieces")
            score, n = struct.unpack_from("<fi", data, at)
            self.pieces.append(data[at + 8 : at + 8 + n])
            self.scores.append(score)
            at += 8 + n
        self.ids = {}
        for number, piece in enumerate(self.pieces):
            self.ids.setdefault(piece, number)

    def encode(self, text):
        tokens = [self.ids[b" "]] if text else []
        for character in text:
            raw = character.encode()
            tokens += [self.ids[raw]] if raw in self.ids else [byte + 3 for byte in raw]
        while True:
            pairs = [
                self.ids.get(self.pieces[a] + self.pieces[b]) for a, b in zip(tokens, tokens[1:])
            ]
            found = [(-self.scores[pair], i) for i, pair in enumerate(pairs) if pair is not None]
            if not found:
                return [self.BOS] + tokens
            i = min(found)[1]
            tokens[i : i + 2] = [pairs[i]]

    def decode(self, token, previous):
        piece = self.pieces[token]
        if len(piece) == 6 and piece.startswith(b"<0x"):
            return bytes([int(piece[3:5], 16)])
        # A text begins with a space that is not part of it; encode() put it there.
        return piece[1:] if previous == self.BOS and piece.startswith(b" ") else piece


# ---- The model, attention left out ---------------------------------------------------------------


def norm(x, weight, eps):
    return (
        x
        / np.sqrt(np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32) + np.float32(eps))
        * weight
    )


def silu(x):
    # exp() of a large -x overflows to infinity and x / inf is the 0 that is meant.
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def forward(config, weights, attention, tokens, q_lens):
    """Logits [sequences][vocab] of the last of each sequence's new tokens, all packed in tokens."""
    c, w = config, weights
    x = w["embedding"][tokens]
    attention.begin(q_lens)
    for layer in range(c.n_layers):
        y = norm(x, w["norm_attention"][layer], c.eps)
        q = (y @ w["wq"][layer].T).reshape(-1, c.n_heads, c.head_dim)
        k = (y @ w["wk"][layer].T).reshape(-1, c.n_kv_heads, c.head_dim)
        v = (y @ w["wv"][layer].T).reshape(-1, c.n_kv_heads, c.head_dim)
        out = attention.attend(layer, q, k, v)
        x = x + out.reshape(len(tokens), -1) @ w["wo"][layer].T
        y = norm(x, w["norm_ffn"][layer], c.eps)
        x = x + (silu(y @ w["w1"][layer].T) * (y @ w["w3"][layer].T)) @ w["w2"][layer].T
    last = np.cumsum(q_lens) - 1
    return norm(x[last], w["norm"], c.eps) @ w["embedding"].T


class Angles:
    """Rotation of adjacent channels (2n, 2n + 1) by position · theta^(-2n / head_dim)."""

    def __init__(self, config):
        n = np.arange(config.head_dim // 2)
        freq = config.theta ** (-2.0 * n / config.head_dim)
        angles = np.arange(config.max_len)[:, None] * freq
        self.cos = np.cos(angles).astype(np.float32)
        self.sin = np.sin(angles).astype(np.float32)

    def rotate(self, x, positions):
        c, s = self.cos[positions][:, None], self.sin[positions][:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack((even * c - odd * s, odd * c + even * s), axis=-1).reshape(x.shape)


def positions_of(q_lens, kv_lens):
    return np.concatenate([np.arange(kv - q, kv) for q, kv in zip(q_lens, kv_lens)])


# ---- Attention here ------------------------------------------------------------------------------


def rounded(x, dtype):
    """float32 values to the nearest of dtype (even on a tie), as float32."""
    if dtype == "bf16":
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
    return x.astype(np.float16).astype(np.float32) if dtype == "f16" else x


class LocalAttention:
    """Causal attention in numpy, float32, keys and values in plain arrays."""

    name = "numpy in this process"

    def __init__(self, config, n_sequences, dtype, rope):
        self.config, self.dtype, self.rope = config, dtype, rope
        self.angles = Angles(config)
        shape = (config.n_layers, n_sequences, config.max_len, config.n_kv_heads, config.head_dim)
        self.keys, self.values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self.kv_lens = np.zeros(n_sequences, np.int64)

    def begin(self, q_lens):
        self.q_lens = q_lens
        self.kv_lens = self.kv_lens + q_lens
        self.positions = positions_of(q_lens, self.kv_lens)

    def rotate(self, x):
        # attnd gets x rounded and rounds again what it rotated; rotated here it is rounded once.
        x = rounded(x, self.dtype) if self.rope == "attnd" else x
        return rounded(self.angles.rotate(x, self.positions), self.dtype)

    def attend(self, layer, q, k, v):
        q, k, v = self.rotate(q), self.rotate(k), rounded(v, self.dtype)
        out, at = np.empty_like(q), 0
        for i, (q_len, kv_len) in enumerate(zip(self.q_lens, self.kv_lens)):
            rows, new = slice(at, at + q_len), slice(kv_len - q_len, kv_len)
            self.keys[layer, i, new], self.values[layer, i, new] = k[rows], v[rows]
            out[rows] = self.one(
                q[rows], self.keys[layer, i, :kv_len], self.values[layer, i, :kv_len]
            )
            at += q_len
        return rounded(out, self.dtype)

    def one(self, q, keys, values):
        """[q_len][n_heads][head_dim] against [kv_len][n_kv_heads][head_dim]."""
        group = self.config.n_heads // self.config.n_kv_heads
        keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
        scores = np.einsum("ihd,jhd->hij", q, keys) / np.float32(np.sqrt(self.config.head_dim))
        hidden = np.triu(np.ones(scores.shape[1:], bool), len(keys) - len(q) + 1)
        scores[:, hidden] = -np.inf
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.einsum("hij,jhd->ihd", p / p.sum(axis=-1, keepdims=True), values)

    def stats(self):
        return []

    def close(self):
        pass


# ---- Attention in attnd --------------------------------------------------------------------------


class AttndAttention:
    """Every layer's attention as a Step of one layer; q, k, v and out lie in one shared buffer.

    The lengths and block tables of a forward go to the daemon once, not with every layer: a plan of
    the prompts, then one of the decode steps. The first Step of each later forward updates that plan
    with the new lengths and the new blocks alone.
    """

    name = "attnd"

    def __init__(self, config, dtype, rope, prompt_lens, max_lens, runtime_dir=None):
        """prompt_lens, max_lens: tokens of each sequence at first and at most."""
        self.angles = Angles(config) if rope == "client" else None
        self.kv_lens = np.zeros(len(max_lens), np.int64)
        self.tables = [[] for _ in max_lens]
        n_blocks = sum(-(-n // BLOCK_SIZE) for n in max_lens)
        # Blocks may lie in any order: a fixed shuffle shows it, and runs stay alike.
        self.free_blocks = np.random.default_rng(1).permutation(n_blocks).tolist()
        self.plan, self.n_contexts, self.update = None, None, None
        self.n_plans, self.n_updates = 0, 0
        self.n_steps, self.step_s, self.device_us = 0, 0.0, 0
        layer = attnd.Layer(
            n_heads=config.n_heads,
            n_kv_heads=config.n_kv_heads,
            head_dim=config.head_dim,
            count=config.n_layers,
        )
        if rope == "attnd":
            layer.rope = attnd.Rope("gptj", theta=config.theta)
        group = attnd.Group(kv_dtype=dtype, block_size=BLOCK_SIZE, n_blocks=n_blocks)
        self.client = attnd.Client(runtime_dir, name="generate.py")
        try:
            self.model = self.client.open_model(attnd.ModelSpec([layer], [group], name="llama"))
            self.open_tensors(config, dtype, sum(prompt_lens))
        except BaseException:
            self.client.close()
            raise

    def open_tensors(self, c, dtype, n_rows):
        heads = {"q": c.n_heads, "k": c.n_kv_heads, "v": c.n_kv_heads, "out": c.n_heads}
        room = n_rows * c.n_heads * c.head_dim * 4  # bytes, enough for each at the widest dtype
        buffer = self.client.create_buffer(len(heads) * room)
        # A Step's tensors have its layers in front; here it is one.
        self.tensors = {
            name: buffer.view(dtype, (1, n_rows, n, c.head_dim), offset=i * room)
            for i, (name, n) in enumerate(heads.items())
        }

    def begin(self, q_lens):
        # The first forward brings the prompts; from then on it is one token a sequence.
        n_contexts = 0 if self.kv_lens.any() else len(q_lens)
        self.kv_lens = self.kv_lens + q_lens
        self.positions = positions_of(q_lens, self.kv_lens)
        new_blocks = [self.grow(table, n) for table, n in zip(self.tables, self.kv_lens)]
        lens = {"q_lens": q_lens, "kv_lens": self.kv_lens}
        if n_contexts == self.n_contexts:
            self.update = {**lens, "appended": new_blocks if any(new_blocks) else None}
            self.n_updates += 1
            return
        # An update cannot make contexts generations.
        if self.plan:
            self.plan.drop()
        self.plan = self.client.create_plan(
            self.model, **lens, tables=self.tables, n_contexts=n_contexts
        )
        self.n_contexts = n_contexts
        self.n_plans += 1

    def grow(self, table, kv_len):
        """The blocks that a table has now for kv_len tokens and had not before."""
        n_new = max(0, -(-int(kv_len) // BLOCK_SIZE) - len(table))
        new = [self.free_blocks.pop() for _ in range(n_new)]
        table += new
        return new

    def attend(self, layer, q, k, v):
        if self.angles:
            q, k = self.angles.rotate(q, self.positions), self.angles.rotate(k, self.positions)
        rows = {name: tensor[:, : len(q)] for name, tensor in self.tensors.items()}
        for name, values in (("q", q), ("k", k), ("v", v)):
            rows[name].set(values)
        update, self.update = self.update, None
        begin = time.perf_counter()
        reply = self.client.step(self.plan, layer, 1, **rows, update=update)
        self.step_s += time.perf_counter() - begin
        self.n_steps += 1
        self.device_us += reply.device_us
        return rows["out"].float32()[0]

    def stats(self):
        device = self.client.info.device
        return [
            f"attnd {self.client.info.version}: {device.backend}, {device.name}, "
            f"{device.n_threads} threads",
            f"plans: {self.n_plans}, updated {self.n_updates} times",
            f"steps of one layer: {self.n_steps}, {self.step_s / self.n_steps * 1e6:.0f} us each, "
            f"of which {self.device_us / self.n_steps:.0f} us computing",
        ]

    def close(self):
        self.client.close()


# ---- From prompts to text ------------------------------------------------------------------------


def open_attention(kind, config, dtype, rope, prompts, n_tokens, runtime_dir=None):
    """LocalAttention or AttndAttention for prompts (token lists) and n_tokens more each. ValueError
    for a prompt without tokens, one that does not fit, and when attnd's package is missing."""
    for i, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"prompts[{i}] = '': this model needs a text to begin with")
        if len(prompt) + n_tokens - 1 > config.max_len:
            raise ValueError(
                f"prompts[{i}] = {len(prompt)} tokens: with {n_tokens} more the model's "
                f"{config.max_len} are passed"
            )
    lens = [len(prompt) for prompt in prompts]
    if kind == "local":
        return LocalAttention(config, len(prompts), dtype, rope)
    if not attnd:
        raise ValueError(
            f"attention = attnd: {NO_ATTND}; `make deps all` brings it, in {BUILD}/python"
        )
    max_lens = [n + n_tokens - 1 for n in lens]
    return AttndAttention(config, dtype, rope, lens, max_lens, runtime_dir)


def generate(config, weights, attention, prompts, n_tokens):
    """Yields n_tokens times the next token of every prompt: the likeliest, the lowest on a tie."""
    tokens, q_lens = np.concatenate(prompts).astype(int), [len(prompt) for prompt in prompts]
    for _ in range(n_tokens):
        logits = forward(config, weights, attention, tokens, q_lens)
        tokens, q_lens = np.argmax(logits, axis=1), [1] * len(prompts)
        yield tokens.tolist()


class Printer:
    """Texts as they come: the first one at once, the others, a line each, when they are whole."""

    def __init__(self, texts, out):
        self.out = out
        self.is_one = len(texts) == 1
        self.decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in texts]
        self.later = [[] for _ in texts]
        for i, text in enumerate(texts):
            self.add(i, text.encode())

    def add(self, i, piece, is_last=False):
        text = self.decoders[i].decode(piece, is_last)
        if not self.is_one:
            text = text.replace("\n", "\\n")
        if i == 0:
            self.out.write(text)
            self.out.flush()
        else:
            self.later[i].append(text)

    def end(self):
        for i, pieces in enumerate(self.later):
            self.add(i, b"", is_last=True)
            self.out.write("".join(pieces) + "\n")
        self.out.flush()


def parse(argv):
    parser = argparse.ArgumentParser(
        description="Text from a small Llama whose attention runs in attnd."
    )
    parser.add_argument("--model", required=True, metavar="FILE")
    parser.add_argument("--tokenizer", metavar="FILE", help="llama2.c's; tokN.bin beside the model")
    parser.add_argument(
        "--prompt", action="append", metavar="TEXT", help="may be repeated: one batch"
    )
    parser.add_argument(
        "--tokens", type=int, default=128, metavar="N", help="new ones, each prompt"
    )
    parser.add_argument(
        "--dtype",
        choices=("f32", "f16", "bf16"),
        default="bf16",
        help="of q, k, v, the pool and the output",
    )
    parser.add_argument("--attention", choices=("attnd", "local"), default="attnd")
    parser.add_argument(
        "--rope", choices=("attnd", "client"), default="attnd", help="who rotates q and k"
    )
    parser.add_argument(
        "--chat", action="store_true", help="prompts are questions to an instructed model"
    )
    parser.add_argument("--runtime-dir", metavar="DIR", help="of attnd's sockets")
    parser.add_argument("--stats", action="store_true", help="where the time went")
    args = parser.parse_args(argv)
    if args.tokens < 1:
        parser.error(f"--tokens = {args.tokens}: at least 1")
    return args


def show_progress(done, of):
    if sys.stderr.isatty() or done == of:
        end = "\n" if done == of else ""
        print(f"\rloading: {done} of {of} layers", end=end, file=sys.stderr, flush=True)


def run(args):
    config, weights, tokenizer = load(args.model, args.tokenizer, show_progress)
    texts = args.prompt or [""]
    if args.chat and not hasattr(tokenizer, "chat"):
        raise ValueError("chat = this model: it is not instructed, it goes on with a text")
    prompts = [tokenizer.chat(text) if args.chat else tokenizer.encode(text) for text in texts]
    attention = open_attention(
        args.attention, config, args.dtype, args.rope, prompts, args.tokens, args.runtime_dir
    )
    try:
        printer = Printer(["" if args.chat else text for text in texts], sys.stdout)
        previous = [prompt[-1] for prompt in prompts]
        speaks = [True] * len(prompts)
        times = [time.perf_counter()]
        for step in generate(config, weights, attention, prompts, args.tokens):
            times.append(time.perf_counter())
            for i, token in enumerate(step):
                speaks[i] = speaks[i] and not (args.chat and token == tokenizer.eos)
                if speaks[i]:
                    printer.add(i, tokenizer.decode(token, previous[i]))
            if not any(speaks):
                break
            previous = step
        printer.end()
        report(args, attention, prompts, times)
    finally:
        attention.close()


def report(args, attention, prompts, times):
    n_steps = len(times) - 1
    n, seconds = n_steps * len(prompts), times[-1] - times[0]
    print(
        f"{n} tokens in {seconds:.2f} s, {n / seconds:.0f} tokens/s; attention: {attention.name}, "
        f"{args.dtype}",
        file=sys.stderr,
    )
    if not args.stats:
        return
    print(
        f"prefill: {sum(map(len, prompts))} tokens in {(times[1] - times[0]) * 1e3:.1f} ms",
        file=sys.stderr,
    )
    if n_steps > 1:
        print(
            f"decode: {(times[-1] - times[1]) / (n_steps - 1) * 1e3:.2f} ms a step of "
            f"{len(prompts)} sequences",
            file=sys.stderr,
        )
    for line in attention.stats():
        print(line, file=sys.stderr)


def main(argv=None):
    args = parse(argv)
    try:
        run(args)
    except (OSError, ValueError, attnd.Error if attnd else ValueError) as wrong:
        sys.exit(f"generate.py: {wrong}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
