#!/usr/bin/env bash
# The road on a GPU, end to end: case files inline and through plans, captures that replay, both clients, a
# model's text as on the CPU, an engine that is killed, no GPU to be seen.
#
#   gpu_road.sh bundle DIR   puts into DIR what it needs of this tree, built, and itself
#   gpu_road.sh [run]        in such a DIR: runs it; logs in $OUT (./out); 1 when something failed.
#                            BACKEND=cpu rehearses it without a GPU
set -uo pipefail

bundle() { # DIR
    local root b=$1/build/release
    root=$(cd "$(dirname "$0")/.." && pwd)
    rm -rf "$1"
    mkdir -p "$b/bin" "$b/fake_gpu/bin" "$1"/{lib,scripts,tests/e2e,tests/soak} || exit 1
    for program in attnd attnctl; do strip -o "$b/bin/$program" "$root/build/release/bin/$program" || exit 1; done
    cp "$b/bin/attnd" "$b/fake_gpu/bin/"
    cp -rL "$root/build/release/python" "$b/python"
    # What belongs to glibc is the other machine's own.
    ldd "$b"/bin/* | awk '$3 ~ /^\// && $1 !~ /^lib(c|m|pthread|dl|rt)\.so/ { print $3 }' | sort -u | xargs -I{} cp -L {} "$1/lib/"
    cp -r "$1/lib" "$b/fake_gpu/lib"
    cp "$root"/scripts/{generate.py,gguf_model.py,demo.sh,gpu_road.sh} "$1/scripts/"
    cp -r "$root"/tests/{cases,data,support} "$1/tests/"
    cp "$root"/tests/e2e/{support,test_fake_gpu}.py "$1/tests/e2e/"
    find "$1" -name __pycache__ -prune -exec rm -rf {} +
}

if [ "${1:-run}" = bundle ]; then
    bundle "$2"
    exit
fi
cd "$(dirname "$0")/.." || exit 1
root=$PWD
out=${OUT:-$root/out}
python=${PYTHON:-python3}
backend=${BACKEND:-cuda}
export ATTND_BUILD=$root/build/release LD_LIBRARY_PATH=$root/lib
mkdir -p "$out"
home=$(mktemp -d /tmp/gpu-e2e.XXXXXX)
daemon=
failed=0
trap '[ -z "$daemon" ] || kill -KILL "$daemon" 2>/dev/null; rm -rf "$home"' EXIT

verdict() { # name, exit code
    if [ "$2" = 0 ]; then echo "ok      $1"; else echo "FAILED  $1 ($2)"; failed=1; fi
}
ctl() { build/release/bin/attnctl "$@"; }
start() { # name, flags...
    local name=$1
    shift
    dir=$home/$name
    build/release/bin/attnd --runtime.dir="$dir" "$@" 2>"$out/attnd-$name.log" &
    daemon=$!
    for _ in $(seq 600); do
        ctl --socket "$dir/control" ready >/dev/null 2>&1 && return 0
        kill -0 "$daemon" 2>/dev/null || break
        sleep 0.05
    done
    cat "$out/attnd-$name.log"
    return 1
}
stop() {
    kill -TERM "$daemon"
    wait "$daemon"
    verdict "SIGTERM drains and ends it" $?
    daemon=
}
count() { # rows of attnctl --json check
    "$python" - "$1" <<'PY'
import collections, json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
print("       ", dict(collections.Counter(row["verdict"] for row in rows)))
for row in rows:
    if row["verdict"] == "failed":
        print("        failed:", row["case"], row["variant"], row["message"][:300])
PY
}
check() { # name, words...
    local name=$1
    shift
    timeout 250 build/release/bin/attnctl --json check --dir "$dir" "$@" >"$out/$name.jsonl" 2>"$out/$name.err"
    verdict "attnctl check $name" $?
    count "$out/$name.jsonl"
}
speak() { # name
    timeout 200 "$python" scripts/generate.py --runtime-dir "$dir" --dtype f16 --stats --model tests/data/austen1m.bf16.bin \
        --prompt "It is a truth universally" --prompt "Mr. Darcy was" --prompt "She could not help" \
        >"$out/text-$1.txt" 2>"$out/text-$1.err"
    verdict "generate.py on $1" $?
    sed 's/^/        /' "$out/text-$1.err"
}

nvidia-smi -L 2>/dev/null
start "$backend" --device.backend="$backend" || exit 1
grep ready "$out/attnd-$backend.log"
check inline tests/cases
check plans --plans tests/cases
speak "$backend"
mkdir -p "$home/captured"
ctl --socket "$dir/control" capture 40 --into "$home/captured" >"$out/capture.txt" 2>&1
verdict "capture is started" $?
check while_captured tests/cases
sleep 2
ls "$home/captured" | wc -l | sed 's/^/        captured files: /'
check captured "$home/captured"
ctl --socket "$dir/control" stats >"$out/stats.txt"
engine=$(cat "/proc/$daemon/task/$daemon/children")
kill -KILL $engine
for _ in $(seq 600); do ctl --socket "$dir/control" ready >/dev/null 2>&1 && break; sleep 0.05; done
check after_the_engine_was_killed tests/cases/append_reaches_its_rows_only.json
stop

start cpu --device.backend=cpu || exit 1
speak cpu
stop
[ -s "$out/text-cpu.txt" ] && diff "$out/text-$backend.txt" "$out/text-cpu.txt" >"$out/text.diff"
verdict "the model says the same on $backend and cpu" $?
"$python" - "$out/text-$backend.txt" <<'PY'
import json, sys
said = open(sys.argv[1]).read()
for one in json.load(open("tests/data/austen1m.json")):
    print("        golden text", "found:" if one["text"] in said else "NOT FOUND:", one["prompt"])
PY

# The tests of the fake GPU that hold on a real one, on it.
LD_LIBRARY_PATH=$ATTND_BUILD/fake_gpu/lib "$python" - tests <<'PY' >"$out/python.tap" 2>&1
import os, sys
sys.argv = [os.path.abspath("tests/e2e/test_fake_gpu.py")]
sys.path.insert(0, "tests/e2e")
import test_fake_gpu as t, tap
for name in ("a_buffer_is_read_and_written_by_copies_alone", "a_view_keeps_the_memory_when_its_buffer_is_freed",
             "other_libraries_take_it_as_memory_of_the_gpu", "memory_of_a_gpu_has_no_name", "what_is_captured_replays"):
    try:
        getattr(t, name)()
        print("ok -", name)
    except BaseException as wrong:
        print("not ok -", name, repr(wrong)[:500])
PY
! grep -q '^not ok\|Traceback' "$out/python.tap" && [ "$(grep -c '^ok' "$out/python.tap")" = 5 ]
verdict "the Python client on $backend" $?
sed 's/^/        /' "$out/python.tap"

CUDA_VISIBLE_DEVICES= build/release/bin/attnd --no-keeper --runtime.dir="$home/none" --device.backend=cuda 2>"$out/none.log"
code=$?
[ "$code" = 69 ]
verdict "no GPU to be seen: exit code 69 (was $code)" $?
sed 's/^/        /' "$out/none.log"
CUDA_VISIBLE_DEVICES= start auto || failed=1
grep ready "$out/attnd-auto.log"
grep -q 'backend=cpu.*passed_over=' "$out/attnd-auto.log"
verdict "auto without a GPU takes the CPU and says why" $?
stop
exit "$failed"
