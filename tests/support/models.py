"""What the generation tests share: models, their golden texts, scripts/generate.py as a module."""

import importlib.util
import json
import os

import numpy as np
import tap

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.path.join(ROOT, "tests", "data")
AUSTEN = os.path.join(DATA, "austen1m.bf16.bin")


def load_generate():
    """scripts/generate.py, which is no package."""
    path = os.path.join(ROOT, "scripts", "generate.py")
    spec = importlib.util.spec_from_file_location("generate", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load_generate()


def golden(name):
    with open(os.path.join(DATA, name), encoding="utf-8") as file:
        return json.load(file)


AUSTEN_GOLDEN = golden("austen1m.json")
STORIES_GOLDEN = golden("stories260K.json")


def stories():
    """Path of stories260K.bin; skips the test where it is not."""
    places = [
        os.environ.get("ATTND_TEST_DATA"),
        os.path.join(os.path.dirname(ROOT), "shared", "models"),
    ]
    for place in filter(None, places):
        path = os.path.join(place, "stories260K.bin")
        if os.path.exists(path):
            return path
    raise tap.Skip("no stories260K.bin in $ATTND_TEST_DATA or ../shared/models")


def tokens_of(kind, path, texts, n_tokens, dtype, rope="attnd", runtime_dir=None):
    """[prompts][n_tokens] token ids, and the whole texts, of one batch."""
    config, weights, tokenizer = generate.load(path)
    prompts = [tokenizer.encode(text) for text in texts]
    attention = generate.open_attention(kind, config, dtype, rope, prompts, n_tokens, runtime_dir)
    try:
        steps = list(generate.generate(config, weights, attention, prompts, n_tokens))
    finally:
        attention.close()
    tokens = np.array(steps).T.tolist()
    whole = []
    for text, prompt, new in zip(texts, prompts, tokens):
        pieces = [tokenizer.decode(b, a) for a, b in zip(prompt[-1:] + new, new)]
        whole.append(text + b"".join(pieces).decode("utf-8", "replace"))
    return tokens, whole
