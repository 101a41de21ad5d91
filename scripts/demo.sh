#!/usr/bin/env bash
# The first minute: a daemon of its own, a real (tiny) model whose attention it computes, its numbers, a
# clean stop. Nothing is installed and nothing is left behind. With DEMO_MODEL=smollm2 (make demo
# MODEL=smollm2) a larger one, fetched once into build/smollm2, answers $QUESTION.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
export ATTND_BUILD=${ATTND_BUILD:-$root/build/release}
python=${PYTHON:-/usr/bin/python3}
home=$(mktemp -d "${TMPDIR:-/tmp}/attnd-demo.XXXXXX")
run=$home/run
daemon=
model=${DEMO_MODEL:-austen}

case $model in
austen) ;;
smollm2) "$root/scripts/fetch_smollm2.sh" "$root/build/smollm2" ;;
*)
    echo "demo: MODEL = $model: austen or smollm2" >&2
    exit 64
    ;;
esac

cleanup() {
    if [ -n "$daemon" ]; then
        kill -KILL "$daemon" 2>/dev/null || true
    fi
    rm -rf "$home"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say() {
    printf '\n== %s\n' "$*"
}

give_up() {
    echo "demo: $*; the daemon's log:" >&2
    cat "$home/log" >&2
    exit 1
}

say "Starting attnd, the attention server, in $run"
"$ATTND_BUILD/bin/attnd" --runtime.dir="$run" 2>"$home/log" &
daemon=$!
for _ in $(seq 200); do
    "$ATTND_BUILD/bin/attnctl" --socket "$run/control" ready >/dev/null 2>&1 && break
    kill -0 "$daemon" 2>/dev/null || give_up "attnd did not start"
    sleep 0.05
done
"$ATTND_BUILD/bin/attnctl" --socket "$run/control" ready >/dev/null || give_up "attnd is not ready"
echo "   It is ready: process $daemon, with the sockets data, buf and control in that directory."

austen() {
    say "A Llama of 1 million parameters, trained on Jane Austen, continues three prompts as one batch."
    echo "   The model runs in Python (numpy); all its attention, KV cache included, runs in attnd."
    echo
    "$python" "$root/scripts/generate.py" --runtime-dir "$run" --dtype f16 --stats \
        --model "$root/tests/data/austen1m.bf16.bin" \
        --prompt "It is a truth universally" --prompt "Mr. Darcy was" --prompt "She could not help"
}

smollm2() {
    local question=${QUESTION:-Why is the sky blue? Answer in two sentences.}
    say "SmolLM2, a Llama of 135 million parameters and 30 layers, is asked: $question"
    echo "   The model runs in Python (numpy); all its attention, KV cache included, runs in attnd."
    echo
    "$python" "$root/scripts/generate.py" --runtime-dir "$run" --dtype f16 --stats --chat \
        --model "$root/build/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" \
        --tokens 128 --prompt "$question"
}

"$model"

say "What the daemon counted (from attnctl stats, which also has the times of every op and kernel)"
"$ATTND_BUILD/bin/attnctl" --socket "$run/control" stats >"$home/stats"
sed -e '/^ops_times/,$d' -e '/ 0$/d' -e '/^gauges$/d' "$home/stats"

say "Stopping it (SIGTERM: finish what runs, then leave)"
kill -TERM "$daemon"
code=0
wait "$daemon" || code=$?
daemon=
[ "$code" = 0 ] || give_up "attnd left with $code"
echo "attnd left with 0. Read on: README.md, proto/attnd.proto, scripts/generate.py (a client)."
