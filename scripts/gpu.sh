#!/usr/bin/env bash
# What needs a GPU: tests of the kernels, the daemon end to end (gpu_road.sh), the bench beside its peers,
# compute-sanitizer over the tests.
#
#   gpu.sh bundle [DIR]   builds the programs and packs them into DIR (build/gpu) with their libraries and
#                         this script: DIR alone runs on a machine that has nothing of ours
#   gpu.sh run [DIR]      runs them; logs and results.tsv in $OUT (DIR/out). The table and the counts
#                         come last; 1 when something failed. Without a GPU all of it is skipped
#
# STEPS="tests road bench sanitizers" leaves steps out. PYTHON: one that has PyTorch, for the peers.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
# A bundle has the programs beside this script.
if [ -e "$here/programs.tar.gz" ]; then
    root=$here default=$here
else
    root=$(cd "$here/.." && pwd) default=$root/build/gpu
fi

programs=(kernels/test_{cases,claims,conformance,far,merge,probes} unit/test_ker_{device,registry})
steps=${STEPS:-tests road bench sanitizers}

# ---- bundle ------------------------------------------------------------------------------------------

bundle() { # DIR
    local dir=$1 build=build/release libraries program
    cd "$root" || exit 1
    command -v nvcc >/dev/null || {
        echo "gpu: no bundle: nvcc is not installed"
        return
    }
    env -u MAKEFLAGS -u MAKELEVEL make -s "${programs[@]/#/$build/tests/}" $build/bench/gpu all >&2 || exit 1
    stage=$(mktemp -d)
    trap 'rm -rf "$stage"' EXIT
    for program in "${programs[@]/#/$build/tests/}" $build/bench/gpu; do
        strip -o "$stage/${program##*/}" "$program" || exit 1
    done
    rm -rf "$dir"/{lib,programs.tar.gz}
    mkdir -p "$dir/lib" || exit 1
    # What belongs to glibc is the other machine's own.
    libraries=$(ldd "$stage"/* | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
        grep -vE '/(libc|libm|libpthread|libdl|librt|libresolv)\.so')
    for library in $libraries; do cp -L "$library" "$dir/lib/" || exit 1; done
    tar -czf "$dir/programs.tar.gz" -C "$stage" . || exit 1
    cp scripts/gpu.sh tests/bench/peers.py "$dir/" || exit 1
    "$root/scripts/gpu_road.sh" bundle "$dir/road" || exit 1
    # The rows of the table that run on a GPU.
    sed -nE 's/^KERNEL\(([a-z0-9_]+_sm[0-9]+),.*/\1/p' kernels/kernels.def > "$dir/rows"
    git describe --always --dirty --abbrev=10 > "$dir/commit" 2>/dev/null || head -1 .dist > "$dir/commit"
    echo "gpu: $dir: $(du -sh "$dir" | cut -f1), commit $(cat "$dir/commit")"
}

# ---- run ---------------------------------------------------------------------------------------------

# A job is a command whose TAP, or whose exit status where it speaks none, is a result. Its log is
# $out/NAME.log; its counts go to $out/NAME.n as passed, failed, skipped.
job() { # NAME SECONDS COMMAND...
    local name=$1 limit=$2 begin=$SECONDS status counts
    shift 2
    timeout -k 5 "$limit" env CMOCKA_MESSAGE_OUTPUT=TAP LD_LIBRARY_PATH="$dir/lib" "$@" \
        >"$out/$name.log" 2>&1 </dev/null
    status=$?
    # A skipped test may stand as "not ok … # SKIP" or as "ok … # SKIP".
    counts=$(awk -v status=$status '
        /^[a-z]+: skipped: / { skipped++ }
        /^(not )?ok / { if (/# SKIP/) skipped++; else if (/^not/) failed++; else passed++ }
        END {
            if (passed + failed + skipped == 0 && status == 0) passed = 1
            if (status != 0 && !failed) failed = 1
            print passed + 0, failed + 0, skipped + 0
        }' "$out/$name.log")
    echo "$counts" > "$out/$name.n"
    local passed failed skipped
    read -r passed failed skipped <<<"$counts"
    printf '  %-5s%-50s %4d passed %3d failed %3d skipped %4d s\n' "$([ "$failed" = 0 ] && echo ok || echo FAIL)" \
        "$name" "$passed" "$failed" "$skipped" $((SECONDS - begin))
    [ "$status" != 124 ] || echo "        $name: not ended after $limit s"
    sed -nE 's/^(not )?ok [0-9]+ (- )?(.*)# SKIP(.*)/        skipped: \3\4/p' "$out/$name.log"
    [ "$failed" = 0 ] || {
        grep -hE '^not ok|^# .*(rror|ailure)|^=========' "$out/$name.log" "$out/$name.san" 2>/dev/null |
            grep -v '# SKIP' | head -n 20 | cut -c1-300 | sed 's/^/        /'
    }
}

skip() { # NAME REASON [COUNT]
    echo "0 0 ${3:-1}" > "$out/$1.n"
    echo "        skipped: $1: $2"
}

# Lines of commands, so many at once.
together() { # AT_ONCE
    xargs -r -L 1 -P "$1" bash -c '"$@"' together
}

run_tests() {
    local program
    # Alone: it looks at the memory that is free.
    job test_ker_device 120 "$bin/test_ker_device"
    for program in "${programs[@]##*/}"; do
        [ "$program" = test_ker_device ] || echo "job $program 400 $bin/$program"
    done | together 7
    grep -q '^ok [0-9]* - cuda$' "$out/test_conformance.log" || {
        echo "0 1 0" > "$out/cuda.n"
        echo "  FAIL the driver shows a GPU, the kernels did not run on it"
    }
}

run_road() {
    OUT=$out/road job road 400 bash "$dir/road/scripts/gpu_road.sh" run
    sed 's/^/  /' "$out/road.log"
}

sanitize() { # TOOL NAME PROGRAM ARGUMENTS...
    local tool=$1 name=$1_$2 program=$bin/$3 options=()
    shift 3
    # Problems come in random order: the first launches are as good as any.
    [ "$tool" = memcheck ] || options=(--launch-count 400)
    job "$name" 150 "$sanitizer" --tool "$tool" "${options[@]}" --error-exitcode 99 --print-limit 20 \
        --log-file "$out/$name.san" "$program" "$@"
}

# One row of each family and type: 128 wide where there is one.
rows_to_sanitize() {
    awk '{
        key = $1
        sub(/(_d[0-9]+)?_sm[0-9]+$/, "", key)
        if (!(key in row)) order[++n] = key
        if (!(key in row) || $1 ~ /_d128_/) row[key] = $1
    } END { for (i = 1; i <= n; i++) print row[order[i]] }' "$dir/rows"
}

run_sanitizers() {
    local row program
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null) || {
        skip sanitizers "compute-sanitizer is not installed" $((4 + 2 * $(rows_to_sanitize | wc -l)))
        return
    }
    export sanitizer
    # Each listens on a port of its own, of which there are ten.
    {
        for program in far probes merge; do echo "sanitize memcheck test_$program test_$program"; done
        for row in $(rows_to_sanitize); do
            echo "sanitize memcheck $row test_conformance --kernel $row"
            echo "sanitize racecheck $row test_conformance --kernel $row"
        done
        echo "sanitize racecheck test_merge test_merge"
    } | together 8
}

run_bench() {
    local tsv=$out/results.tsv commit product
    commit=$(cat "$dir/commit")
    printf 'what\tshape\tp50_us\trate\tratio\tratio_of\tmachine\tdate\tcommit\n' > "$tsv"
    if "$python" -c 'import torch' 2>/dev/null; then
        # Not with our libraries before its own.
        timeout -k 5 180 "$python" "$dir/peers.py" --tsv "$tsv" --commit "$commit" >"$out/peers.log" 2>&1 &&
            echo "1 0 $(grep -c '^skipped:' "$out/peers.log")" > "$out/peers.n" || echo "0 1 0" > "$out/peers.n"
        sed 's/^/  /' "$out/peers.log"
    else
        skip peers "$python has no PyTorch"
    fi
    product=$(awk -F'\t' '$1 == "torch_matmul" { print $4 + 0 }' "$tsv")
    job bench 240 "$bin/gpu" --tsv "$tsv" --commit "$commit" ${product:+--matmul "$product"}
    sed 's/^/  /' "$out/bench.log"
}

# Ours beside the fastest of the peers, which reads keys without pages.
print_table() {
    awk -F'\t' '
        NR == 1 || $1 == "torch_matmul" || $1 == "copy" { next }
        $1 ~ /^torch_/ { if (!($2 in peer) || $3 < peer[$2]) { peer[$2] = $3 + 0; name[$2] = $1 } next }
        {
            shape = $2
            page = shape
            sub(/ p[0-9]+$/, "", shape)
            sub(/.* p/, "", page)
            if (!(shape in seen)) { seen[shape] = 1; order[++n] = shape }
            us[shape, page] = $3
            part[shape, page] = $5
            if (!(shape in best) || $3 < best[shape]) best[shape] = $3 + 0
        }
        END {
            printf "%-22s %10s %8s %10s %8s %10s %10s  %s\n", "us", "p16", "ceiling", "p64", "ceiling", \
                "peer", "peer/ours", "peer"
            for (i = 1; i <= n; i++) {
                s = order[i]
                printf "%-22s %10s %8s %10s %8s %10s %10s  %s\n", s, us[s, 16], part[s, 16], us[s, 64], \
                    part[s, 64], s in peer ? peer[s] : "-", s in peer ? sprintf("%.2f", peer[s] / best[s]) : "-", \
                    s in peer ? name[s] : ""
            }
        }' "$out/results.tsv"
}

# A GPU that the driver shows.
has_gpu() {
    command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU '
}

run() { # DIR
    local step counts
    dir=$1
    has_gpu || {
        echo "gpu: no GPU here: the kernel tests on one, the sanitizers and the bench are skipped"
        echo "0 passed, 0 failed, $((${#programs[@]} + 3)) skipped"
        return
    }
    [ -e "$dir/programs.tar.gz" ] || {
        echo "gpu: $dir has no bundle: gpu.sh bundle $dir" >&2
        exit 1
    }
    dir=$(cd "$dir" && pwd)
    out=${OUT:-$dir/out}
    mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
    rm -f "$out"/*.n
    python=${PYTHON:-python3}
    bin=$(mktemp -d)
    trap 'rm -rf "$bin"' EXIT
    tar -xzf "$dir/programs.tar.gz" -C "$bin" || exit 1
    export -f job sanitize
    export out dir bin
    nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv,noheader
    for step in $steps; do
        echo "$step:"
        "run_$step"
    done
    [ ! -e "$out/results.tsv" ] || print_table
    counts=$(cat "$out"/*.n 2>/dev/null | awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }')
    awk '{ printf "%d passed, %d failed, %d skipped\n", $1, $2, $3; exit $2 > 0 || $1 == 0 }' <<<"$counts"
}

dir=${2:-$default}
case ${1:-} in
bundle) bundle "$(mkdir -p "$dir" && cd "$dir" && pwd)" ;;
run) run "$dir" ;;
*)
    echo "usage: gpu.sh bundle|run [DIR]" >&2
    exit 2
    ;;
esac
