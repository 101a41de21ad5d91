"""test_smollm2.py: a real instructed model of 30 layers says the same with its attention in the daemon
as without. Needs the file that `make demo MODEL=smollm2` fetches; fetches nothing itself."""

import os

from support import ROOT, Daemon

import tap
from models import generate

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTION = "What is the capital of France?"
N_TOKENS = 64


def path_of_model():
    places = [os.environ.get("ATTND_TEST_DATA"), os.path.join(ROOT, "build", "smollm2")]
    for place in filter(None, places):
        path = os.path.join(place, NAME)
        if os.path.exists(path):
            return path
    raise tap.Skip(f"no {NAME} in $ATTND_TEST_DATA or build/smollm2; make demo MODEL=smollm2")


def answer(kind, model, prompt, runtime_dir):
    config, weights, _ = model
    attention = generate.open_attention(kind, config, "f32", "attnd", [prompt], N_TOKENS, runtime_dir)
    try:
        steps = generate.generate(config, weights, attention, [prompt], N_TOKENS)
        return [step[0] for step in steps]
    finally:
        attention.close()


@tap.test
def sixty_four_greedy_tokens_are_those_of_attention_in_process_in_fp32():
    model = generate.load(path_of_model())
    tokenizer = model[2]
    prompt = tokenizer.chat(QUESTION)
    with Daemon("--log.level=error") as daemon:
        tokens = answer("attnd", model, prompt, daemon.dir)
        ops = {one["op"]: one["count"] for one in daemon.rpc("stats.get")["ops"]}
        tap.equal((ops.get("step"), ops.get("attend")), (N_TOKENS * model[0].n_layers, None))
    tap.equal(tokens, answer("local", model, prompt, None))
    said = tokens[: tokens.index(tokenizer.eos)]
    tap.equal(b"".join(tokenizer.decode(t, 0) for t in said), b"The capital of France is Paris.")


@tap.test
def its_tokenizer_gives_every_text_back():
    tokenizer = generate.load(path_of_model())[2]
    for text in ("Hello, world! 123", "Grüße, 你好 \U0001f600", "\t tabs\r\n", "it's _x_ = {1: '2'}"):
        tokens = tokenizer.encode(text)
        tap.equal(b"".join(tokenizer.decode(token, 0) for token in tokens).decode(), text)
    tap.equal(len(tokenizer.encode(" the the the")), 3)
    tap.equal(len(tokenizer.encode("12345")), 5)


tap.main()
