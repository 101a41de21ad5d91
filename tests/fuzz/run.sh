#!/usr/bin/env bash
# make fuzz: every fuzz target for some seconds, from its corpus and what earlier runs found; fails when
# one broke. run.sh SECONDS [TARGET]
set -uo pipefail
cd "$(dirname "$0")/../.."

seconds=$1 only=${2:-}
failed=()
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1:quarantine_size_mb=8:malloc_context_size=4
export UBSAN_OPTIONS=print_stacktrace=1

for fuzzer in build/fuzz/bin/fuzz_*; do
    target=${fuzzer##*/fuzz_}
    [ -z "$only" ] || [ "$only" = "$target" ] || continue
    mkdir -p "build/fuzz/$target" build/fuzz/crashes
    echo "fuzz $target: $seconds s"
    more=()
    [ "$target" != case ] || more=(tests/cases)
    "$fuzzer" -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=2048 -entropic=0 -print_final_stats=1 \
        -artifact_prefix="build/fuzz/crashes/$target-" "build/fuzz/$target" "tests/fuzz/corpus/$target" "${more[@]}" \
        >"build/fuzz/$target.log" 2>&1 || failed+=("$target")
    grep -E '^stat::(number_of_executed_units|average_exec_per_sec|peak_rss_mb)|^Done' "build/fuzz/$target.log"
done
if [ -z "$only" ] || [ "$only" = fields ]; then
    "${PYTHON:-python3}" tests/fuzz/fields.py || failed+=(fields)
fi

[ ${#failed[@]} = 0 ] && exit 0
for target in "${failed[@]}"; do
    [ "$target" = fields ] || tail -50 "build/fuzz/$target.log"
done
echo "fuzz: failed: ${failed[*]}; inputs in build/fuzz/crashes"
exit 1
