"""test_generate.py: a real model says the same with its attention in the daemon as without, and
what it is known to say."""

import os
import subprocess
import sys

from support import BUILD, ROOT, Daemon

import tap
from models import AUSTEN, AUSTEN_GOLDEN, STORIES_GOLDEN, generate, stories, tokens_of

daemon = None


def both(path, prompts, n_tokens, dtype, rope="attnd"):
    """The texts through the daemon, whose tokens are those of attention in process."""
    local, _ = tokens_of("local", path, prompts, n_tokens, dtype, rope)
    tokens, texts = tokens_of("attnd", path, prompts, n_tokens, dtype, rope, daemon.dir)
    tap.equal(tokens, local)
    return texts


def ops():
    """Requests that the daemon has answered, by op."""
    return {one["op"]: int(one["count"]) for one in daemon.rpc("stats.get")["ops"]}


@tap.test
def austen1m_in_f32_says_its_golden_texts():
    texts = both(AUSTEN, [one["prompt"] for one in AUSTEN_GOLDEN], 128, "f32")
    tap.equal(texts, [one["text"] for one in AUSTEN_GOLDEN])


@tap.test
def austen1m_in_f16_says_its_golden_texts():
    texts = both(AUSTEN, [one["prompt"] for one in AUSTEN_GOLDEN], 128, "f16")
    tap.equal(texts, [one["text"] for one in AUSTEN_GOLDEN])


@tap.test
def austen1m_in_bf16_says_those_without_a_near_tie():
    chosen = [AUSTEN_GOLDEN[0], AUSTEN_GOLDEN[2]]
    texts = both(AUSTEN, [one["prompt"] for one in chosen], 128, "bf16")
    tap.equal(texts, [one["text"] for one in chosen])


@tap.test
def a_prompt_alone_says_what_it_says_in_a_batch():
    for one in AUSTEN_GOLDEN:
        tap.equal(both(AUSTEN, [one["prompt"]], 128, "f16"), [one["text"]])


@tap.test
def rotated_by_the_client_it_says_the_same():
    texts = both(AUSTEN, [one["prompt"] for one in AUSTEN_GOLDEN], 128, "f16", rope="client")
    tap.equal(texts, [one["text"] for one in AUSTEN_GOLDEN])


@tap.test
def many_prompts_of_all_lengths_are_one_batch():
    source = AUSTEN_GOLDEN[0]["text"]
    prompts = [source[: 1 + 5 * i] for i in range(24)]
    both(AUSTEN, prompts, 24, "f32")


@tap.test
def stories260k_says_its_golden_tokens_in_f32_and_f16():
    path = stories()
    for dtype in ("f32", "f16"):
        texts = both(path, [one["prompt"] for one in STORIES_GOLDEN], 64, dtype)
        tap.equal(texts, [one["text"] for one in STORIES_GOLDEN])


@tap.test
def stories260k_says_its_golden_tokens_in_bf16():
    path = stories()
    chosen = STORIES_GOLDEN[:3]  # the fourth has a near tie
    texts = both(path, [one["prompt"] for one in chosen], 64, "bf16")
    tap.equal(texts, [one["text"] for one in chosen])


@tap.test
def the_command_speaks_through_the_daemon():
    script = os.path.join(ROOT, "scripts", "generate.py")
    prompts = [part for one in AUSTEN_GOLDEN for part in ("--prompt", one["prompt"])]
    done = subprocess.run(
        [
            sys.executable,
            script,
            "--model",
            AUSTEN,
            "--dtype",
            "f16",
            "--tokens",
            "128",
            "--runtime-dir",
            daemon.dir,
            "--stats",
            *prompts,
        ],
        env=dict(os.environ, ATTND_BUILD=BUILD),
        capture_output=True,
        text=True,
        timeout=300,
    )
    tap.equal(
        (done.returncode, done.stdout), (0, "".join(one["text"] + "\n" for one in AUSTEN_GOLDEN))
    )
    assert "tokens/s; attention: attnd, f16" in done.stderr, done.stderr
    # 4 layers, a prefill and 127 decode steps, of which the first makes a plan.
    assert "plans: 2, updated 126 times\nsteps of one layer: 512, " in done.stderr, done.stderr


@tap.test
def a_layer_is_a_step_of_a_plan_that_the_first_layers_step_updates():
    n_layers, n_tokens = 4, 40
    before = ops()
    texts = both(AUSTEN, [one["prompt"] for one in AUSTEN_GOLDEN], n_tokens, "f32")
    for text, one in zip(texts, AUSTEN_GOLDEN):
        assert one["text"].startswith(text), text
    counts = {op: n - before.get(op, 0) for op, n in ops().items() if n != before.get(op)}
    # A plan of the prompts, dropped for that of the decode steps. No Attend, and no UpdatePlan:
    # an update takes no round trip of its own.
    wanted = {"hello": 1, "open_model": 1, "create_buffer": 1, "goodbye": 1}
    wanted.update(create_plan=2, drop_plan=1, step=n_tokens * n_layers)
    tap.equal(counts, wanted)


@tap.test
def a_decode_step_sends_the_same_however_long_its_context_is():
    config, weights, tokenizer = generate.load(AUSTEN)
    prompt, n_tokens = tokenizer.encode("She could not "), 161
    attention = generate.open_attention(
        "attnd", config, "f32", "attnd", [prompt], n_tokens, daemon.dir
    )
    received = []
    for _ in generate.generate(config, weights, attention, [prompt], n_tokens):
        received.append(daemon.counter("received_bytes"))
    attention.close()
    # 16 tokens each, so one new block each, behind 2 blocks and behind 10.
    early, late = received[32] - received[16], received[160] - received[144]
    # The request's own number takes a byte more.
    assert early <= late <= early + 16 * config.n_layers, (early, late)


@tap.test
def nothing_is_left_in_the_daemon():
    for what in ("sessions", "models", "buffers", "pools"):
        tap.until(lambda what=what: daemon.rpc(f"{what}.list")[what] == [], f"no {what}")


@tap.test
def the_daemon_stops_cleanly():
    tap.equal(daemon.stop(), 0)


if __name__ == "__main__":
    with Daemon() as daemon:
        tap.main()
