"""test_python_generate.py: model files, tokenizer and the attention generate.py computes itself."""

import io
import os
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("ATTND_BUILD") or os.path.join(ROOT, "build", "release")
sys.path[:0] = [os.path.join(BUILD, "python"), os.path.join(ROOT, "tests", "support")]

import numpy as np
import tap
from models import AUSTEN, AUSTEN_GOLDEN, STORIES_GOLDEN, generate, stories, tokens_of


@tap.test
def austen1m_says_its_golden_texts_in_f32_and_f16():
    prompts = [one["prompt"] for one in AUSTEN_GOLDEN]
    for dtype in ("f32", "f16"):
        texts = tokens_of("local", AUSTEN, prompts, 128, dtype)[1]
        tap.equal(texts, [one["text"] for one in AUSTEN_GOLDEN])


@tap.test
def austen1m_says_the_first_and_the_third_in_bf16():
    chosen = [AUSTEN_GOLDEN[0], AUSTEN_GOLDEN[2]]
    texts = tokens_of("local", AUSTEN, [one["prompt"] for one in chosen], 128, "bf16")[1]
    tap.equal(texts, [one["text"] for one in chosen])


@tap.test
def who_rotates_does_not_change_a_text_without_a_near_tie():
    chosen = AUSTEN_GOLDEN[0]
    for dtype in ("f32", "f16", "bf16"):
        texts = tokens_of("local", AUSTEN, [chosen["prompt"]], 128, dtype, rope="client")[1]
        tap.equal(texts, [chosen["text"]])


@tap.test
def stories260k_says_its_golden_tokens_in_every_dtype():
    path = stories()
    prompts = [one["prompt"] for one in STORIES_GOLDEN]
    for dtype in ("f32", "f16", "bf16"):
        tokens, texts = tokens_of("local", path, prompts, 64, dtype, rope="client")
        tap.equal(tokens, [[int(n) for n in one["ids"].split()] for one in STORIES_GOLDEN])
        tap.equal(texts, [one["text"] for one in STORIES_GOLDEN])


@tap.test
def the_pieces_of_a_prompt_are_the_tokenizers():
    tokenizer = generate.load(stories())[2]
    for one in STORIES_GOLDEN:
        tap.equal(tokenizer.encode(one["prompt"]), [int(n) for n in one["prompt_ids"].split()])
    tap.equal(tokenizer.encode("Once upon a time"), [1, 403, 407, 261, 378])
    tap.equal(tokenizer.encode("你 Tom"), [1, 410, 231, 192, 163, 274, 287])


def reference(q, keys, values, first):
    """float64, one row and head after the other."""
    out = np.zeros(q.shape)
    group = q.shape[1] // keys.shape[1]
    for i in range(q.shape[0]):
        for h in range(q.shape[1]):
            n = first + i + 1
            scores = keys[:n, h // group].astype(float) @ q[i, h] / np.sqrt(q.shape[2])
            p = np.exp(scores - scores.max())
            out[i, h] = p @ values[:n, h // group].astype(float) / p.sum()
    return out


@tap.test
def attention_here_is_causal_softmax_over_grouped_heads():
    seed = 5
    rng = np.random.default_rng(seed)
    config = generate.Config(8, 8, 1, 6, 2, 4, 8, 32)
    attention = generate.LocalAttention(config, 1, "f32", "client")
    q = rng.normal(size=(7, 6, 4)).astype(np.float32)
    keys, values = (rng.normal(size=(9, 2, 4)).astype(np.float32) for _ in range(2))
    got = attention.one(q, keys, values)
    wanted = reference(q, keys, values, 2)
    assert np.abs(got - wanted).max() < 1e-6, f"seed {seed}: {np.abs(got - wanted).max()}"


@tap.test
def a_rotation_is_a_complex_product():
    config = generate.Config(8, 8, 1, 2, 2, 8, 8, 64)
    x = np.random.default_rng(6).normal(size=(3, 2, 8)).astype(np.float32)
    positions = np.array([0, 7, 63])
    got = generate.Angles(config).rotate(x, positions)
    pairs = x[..., 0::2] + 1j * x[..., 1::2]
    turned = pairs * np.exp(1j * positions[:, None, None] * 10000.0 ** (-np.arange(4) / 4))
    assert np.abs(got[..., 0::2] - turned.real).max() < 1e-6
    assert np.abs(got[..., 1::2] - turned.imag).max() < 1e-6
    tap.equal(got[0].tolist(), x[0].tolist())


@tap.test
def rounding_here_is_to_the_nearest_even():
    x = np.float32([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1 - 2**-8, 0])
    tap.equal(generate.rounded(x, "bf16").tolist(), [1, 1 + 2**-6, 1 + 2**-7, -1, 0])
    x = np.float32([1 + 2**-11, 1 + 3 * 2**-11, 2**-26])
    tap.equal(generate.rounded(x, "f16").tolist(), [1, 1 + 2**-9, 0])
    tap.equal(generate.rounded(x, "f32").tolist(), x.tolist())


@tap.test
def the_lowest_token_wins_a_tie():
    config = generate.Config(2, 2, 0, 1, 1, 2, 3, 8)
    weights = {"embedding": np.float32([[1, 0], [2, 0], [2, 0]]), "norm": np.float32([1, 1])}
    attention = generate.LocalAttention(config, 1, "f32", "client")
    tap.equal(list(generate.generate(config, weights, attention, [[0]], 2)), [[1], [1]])


def refusal(function, *args):
    return str(tap.raises(ValueError, function, *args))


@tap.test
def a_file_that_is_no_model_is_refused():
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "m.bin")

        def load(data):
            with open(path, "wb") as file:
                file.write(data)
            return refusal(generate.load, path)

        neither = f"model = {path}: neither austen1m nor llama2.c version 0 with a tied classifier"
        tap.equal(load(b""), neither)
        tap.equal(load(b"GGML" + bytes(60)), neither)
        tap.equal(load(struct.pack("<7i", 64, 172, 5, 8, 4, -512, 512)), neither)
        tap.equal(
            load(struct.pack("<7i", 8, 8, 1, 2, 1, 8, 16) + bytes(40)),
            f"model = {path}: 10 weights; its header says 536",
        )
        with open(AUSTEN, "rb") as file:
            data = file.read()
        tap.equal(load(data[:-2]), f"model = {path}: 1016959 weights; its header says 1016960")


@tap.test
def a_tokenizer_that_ends_early_is_refused():
    with tempfile.NamedTemporaryFile() as file:
        file.write(struct.pack("<i", 2) + struct.pack("<fi", 0.5, 2) + b"ab")
        file.flush()
        tap.equal(generate.Pieces(file.name, 1).pieces, [b"ab"])
        tap.equal(
            refusal(generate.Pieces, file.name, 2),
            f"tokenizer = {file.name}: ends after 1 of 2 pieces",
        )


@tap.test
def a_prompt_that_cannot_be_continued_is_refused():
    config = generate.Config(8, 8, 1, 2, 1, 4, 8, 16)

    def open_attention(prompts, n_tokens):
        return generate.open_attention("local", config, "f32", "attnd", prompts, n_tokens)

    tap.equal(
        refusal(open_attention, [[1], []], 4),
        "prompts[1] = '': this model needs a text to begin with",
    )
    tap.equal(
        refusal(open_attention, [[1] * 10], 8),
        "prompts[0] = 10 tokens: with 8 more the model's 16 are passed",
    )
    open_attention([[1] * 10], 7)


@tap.test
def texts_are_printed_as_they_come_and_whole():
    out = io.StringIO()
    printer = generate.Printer(["a"], out)
    # A character of two bytes comes in two tokens.
    printer.add(0, b"\xc3")
    tap.equal(out.getvalue(), "a")
    printer.add(0, b"\xa9\n")
    tap.equal(out.getvalue(), "aé\n")
    printer.add(0, b"\xff\xc3")
    printer.end()
    tap.equal(out.getvalue(), "aé\n\ufffd\ufffd\n")


@tap.test
def several_texts_are_a_line_each_the_first_at_once():
    out = io.StringIO()
    printer = generate.Printer(["a", "b", "c"], out)
    for i, piece in enumerate((b"1\n", b"2", b"3")):
        printer.add(i, piece)
    tap.equal(out.getvalue(), "a1\\n")
    printer.end()
    tap.equal(out.getvalue(), "a1\\n\nb2\nc3\n")


def command(*args):
    script = os.path.join(ROOT, "scripts", "generate.py")
    return subprocess.run(
        [sys.executable, script, *args], capture_output=True, text=True, timeout=120
    )


@tap.test
def the_command_prints_the_text_and_then_the_speed():
    done = command(
        "--model",
        AUSTEN,
        "--attention",
        "local",
        "--dtype",
        "f16",
        "--tokens",
        "128",
        "--prompt",
        AUSTEN_GOLDEN[1]["prompt"],
        "--stats",
    )
    tap.equal((done.returncode, done.stdout), (0, AUSTEN_GOLDEN[1]["text"] + "\n"))
    lines = done.stderr.splitlines()
    assert lines[0].startswith("128 tokens in ") and "tokens/s; attention: numpy" in lines[0], lines
    assert lines[1].startswith("prefill: 13 tokens in "), lines
    assert lines[2].startswith("decode: ") and lines[2].endswith(" a step of 1 sequences"), lines
    tap.equal(len(lines), 3)


@tap.test
def the_command_says_what_is_wrong_in_a_line():
    with tempfile.TemporaryDirectory() as directory:
        cases = [
            (
                ["--model", AUSTEN, "--prompt", "a", "--runtime-dir", directory],
                f"generate.py: UNAVAILABLE (UNREACHABLE): data = {directory}/data: No such file "
                "or directory; is attnd running?\n",
            ),
            (
                ["--model", AUSTEN],
                "generate.py: prompts[0] = '': this model needs a text to begin with\n",
            ),
            (
                ["--model", f"{directory}/none"],
                f"generate.py: [Errno 2] No such file or directory: '{directory}/none'\n",
            ),
        ]
        for args, text in cases:
            done = command(*args)
            tap.equal((done.returncode, done.stdout, done.stderr), (1, "", text))


if __name__ == "__main__":
    tap.main()
