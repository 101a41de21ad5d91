"""test_presets.py: every preset is accepted, its memory is what its numbers say, and it is a ModelSpec."""

import glob
import json
import os
import re
import subprocess
import tempfile

from support import BUILD, ROOT, Daemon, attnd

import tap

PRESETS = sorted(glob.glob(os.path.join(ROOT, "config", "presets", "*.json")))
NAMES = (
    "bert-base deepseek-v3 gemma-3-4b gpt-oss-20b llama-3-70b llama-3-8b mistral-7b phi-3-mini "
    "qwen-3-8b smollm2-135m t5-base"
).split()
LINE = re.compile(
    r"  group (\S+): (\d+) layers, (\w+), (\d+) tokens a block: [\d.]+ \w+ a block, [\d.]+ \w+ a token; "
    r"(\d+) blocks hold (\d+) tokens in [\d.]+ \w+ \((\d+) bytes, the guard block included\)\Z"
)


def attnd_says(*flags):
    done = subprocess.run(
        [os.path.join(BUILD, "bin", "attnd"), *flags],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def spec_of(path):
    with open(path, encoding="utf-8") as file:
        (spec,) = json.load(file)["models"]
    return spec


def layers_of(spec, group):
    """Layers of a group that keep keys, counts multiplied out."""
    return [
        layer
        for layer in spec["layers"]
        for _ in range(layer.get("count", 1))
        if layer.get("group", 0) == group and layer.get("kind") != "encoder"
    ]


def token_bytes(layer):
    if layer.get("kind") == "mla":
        return 2 * layer["head_dim"]
    return 2 * layer.get("n_kv_heads", layer["n_heads"]) * 2 * layer["head_dim"]


@tap.test
def there_is_a_preset_for_each_family():
    tap.equal([os.path.basename(path)[:-5] for path in PRESETS], NAMES)


@tap.test
def each_is_accepted_and_its_memory_is_what_its_numbers_say():
    for path in PRESETS:
        spec = spec_of(path)
        tap.equal(spec["name"], os.path.basename(path)[:-5])
        code, out, err = attnd_says("--check-config", path)
        tap.equal((code, err), (0, ""))
        first, model, *groups = out.splitlines()
        tap.equal(first, f"{path}: ok")
        n_layers = sum(layer.get("count", 1) for layer in spec["layers"])
        assert model.startswith(f"model {spec['name']}: {n_layers} layers"), model
        tap.equal(len(groups), len(spec["groups"]))
        for g, (line, group) in enumerate(zip(groups, spec["groups"])):
            layers = layers_of(spec, g)
            block_bytes = group["block_size"] * sum(map(token_bytes, layers))
            tap.equal(
                LINE.match(line).groups(),
                (
                    group["name"], str(len(layers)), group["kv_dtype"], str(group["block_size"]),
                    str(group["n_blocks"]), str(group["n_blocks"] * group["block_size"]),
                    str((group["n_blocks"] + 1) * block_bytes),
                ),
            )


@tap.test
def known_numbers_come_out():
    for name, text in (
        ("llama-3-8b", "2 MiB a block, 128 KiB a token; 4096 blocks hold 65536 tokens in 8.00 GiB"),
        ("llama-3-70b", "5 MiB a block, 320 KiB a token"),
        ("deepseek-v3", "4.29 MiB a block, 68.62 KiB a token"),
        ("bert-base", "12 layers, 12 of them encoder layers that keep nothing"),
    ):
        assert text in attnd_says("--check-config", f"{ROOT}/config/presets/{name}.json")[1], name


@tap.test
def a_daemon_does_not_start_with_models():
    path = os.path.join(ROOT, "config", "presets", "smollm2-135m.json")
    code, out, err = attnd_says("--config", path)
    tap.equal((code, out), (78, ""))
    tap.equal(
        err,
        f"attnd: {path}:2:3: models: this server opens no models from its file, a client opens "
        "its own\n",
    )


@tap.test
def a_wrong_model_is_told_and_nothing_of_its_file_is_said_to_be_right():
    good = '{"name": "a", "layers": [{"n_heads": 1, "head_dim": 8}], "groups": [%s]}'
    group = '{"block_size": 16, "kv_dtype": "f32", %s}'
    with tempfile.TemporaryDirectory() as home:
        path = os.path.join(home, "models.json")
        for last, why in (
            (good % (group % '"bytes": 512'), 'bytes = 512: one block and its guard take 2048'),
            ('{"name": "b"}', "models[1].layers = none: a model has at least one"),
        ):
            with open(path, "w", encoding="utf-8") as file:
                first = good % (group % '"n_blocks": 1')
                file.write('{"models": [%s, %s]}' % (first, last.replace('"a"', '"b"')))
            code, out, err = attnd_says("--check-config", path)
            tap.equal((code, out), (78, ""))
            assert err.startswith("attnd: ") and err.endswith(f"{why}\n"), err
        assert attnd_says("--check-config", path)[2].startswith(f"attnd: {path}:1:")


@tap.test
def a_client_opens_them_as_they_stand_there():
    served, refused = [], []
    with Daemon() as daemon, attnd.Client(daemon.dir) as client:
        for path in PRESETS:
            spec = spec_of(path)
            for group in spec["groups"]:
                group["n_blocks"] = 2
            try:
                client.open_model(spec).close()
                served.append(spec["name"])
            except attnd.Error as wrong:
                assert wrong.reason in ("UNSUPPORTED", "BAD_GEOMETRY"), (spec["name"], str(wrong))
                refused.append(spec["name"])
    for name in ("llama-3-8b", "llama-3-70b", "qwen-3-8b", "mistral-7b", "smollm2-135m", "phi-3-mini"):
        assert name in served, name
    tap.equal(sorted(served + refused), NAMES)


if __name__ == "__main__":
    tap.main()
