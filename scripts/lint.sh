#!/usr/bin/env bash
# make lint: format, clang-tidy, cppcheck, the doors; everything is run before the verdict. A tool that is
# not installed is named and skipped. LINT="daemon/log.c ..." looks at these files only.
set -uo pipefail
cd "$(dirname "$0")/.."

build=${ATTND_BUILD:-build/release}
jobs=$(nproc)
failed=()
defines=(-D_GNU_SOURCE '-DATTND_VERSION="0"' '-DATTND_COMMIT="0"')

# An unpacked archive has no git but a list of its files.
files() {
    if [ -n "${LINT:-}" ]; then
        printf '%s\n' $LINT
    else
        { sed 1d .dist || git ls-files -co --exclude-standard; } 2>/dev/null
    fi
}
mapfile -t sources < <(files | grep '\.c$')
mapfile -t all < <(files | grep '\.[ch]$')

has() {
    command -v "$1" >/dev/null && return
    echo "lint: $1 is not installed: skipped"
    return 1
}

step() { # name, command...
    local name=$1 begin=$SECONDS
    shift
    if "$@"; then
        echo "lint: $name ok ($((SECONDS - begin)) s)"
    else
        failed+=("$name")
        echo "lint: $name FAILED ($((SECONDS - begin)) s)"
    fi
}

format() {
    clang-format --dry-run -Werror "${all[@]}"
}

tidy_one() { # file
    local before=(-include scripts/lint.h)
    # Where the function of lint.h is written, its macro would stand in the way.
    [ "$1" != proto/err.c ] || before=()
    clang-tidy --quiet "$1" -- -std=gnu11 -I. -I"$build/gen" "${before[@]}" -D_GNU_SOURCE \
        '-DATTND_VERSION="0"' '-DATTND_COMMIT="0"' 2>/dev/null
}

tidy() {
    export -f tidy_one
    export build
    printf '%s\n' "${sources[@]}" | xargs -P "$jobs" -I{} bash -c 'tidy_one {}'
}

# Off: what it cannot see without the macros of system headers (uthash), and casts that strict aliasing
# allows through char. Tests take the logarithm of 0 on purpose.
check() {
    mkdir -p "$build/cppcheck"
    cppcheck -j "$jobs" --quiet --std=c11 --enable=warning,portability,performance \
        --cppcheck-build-dir="$build/cppcheck" --error-exitcode=1 --inline-suppr -I. "${defines[@]}" \
        '-DcJSON_ArrayForEach(item,list)=for(item=(list)->child;item;item=item->next)' \
        --suppress=missingInclude --suppress=uninitvar --suppress=legacyUninitvar \
        --suppress=ctuuninitvar --suppress=invalidPointerCast --suppress='invalidFunctionArg:tests/*' \
        --template='{file}:{line}: {message} [{id}]' "${sources[@]}"
}

has clang-format && step format format
has clang-tidy && step clang-tidy tidy
has cppcheck && step cppcheck check
step doors scripts/check_rooms.sh

[ ${#failed[@]} = 0 ] || { echo "lint: failed: ${failed[*]}"; exit 1; }
