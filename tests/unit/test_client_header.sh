#!/usr/bin/env bash
# The installed face of libattnd: attnd.h needs no other file of ours, in C and in C++, and the libraries
# show what it declares and nothing else.
set -u
cd "$(dirname "$0")/../.."
build=${ATTND_BUILD:-build/release}
header=$build/include/attnd.h
lib=$build/lib
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n=0

# check NAME COMMAND...
check() {
    n=$((n + 1))
    if "${@:2}" >"$tmp/out" 2>&1; then
        echo "ok $n - $1"
    else
        echo "not ok $n - $1"
        sed 's/^/# /' "$tmp/out"
    fi
}

skip() {
    n=$((n + 1))
    echo "ok $n - $1 # SKIP $2"
}

cat >"$tmp/user.c" <<'END'
#include "attnd.h"
#include <stdio.h>
int main(void)
{
    attnd_err err;
    attnd_client *client;
    if (attnd_connect(&client, "/nowhere/attnd", "user", 100, &err) != ATTND_UNAVAILABLE || client)
        return 1;
    printf("%s %s: %.*s\n", attnd_status_name(err.status), attnd_reason_name(err.reason),
           (int)attnd_err_field_len(&err), err.text);
    attnd_close(client);
    return 0;
}
END
cp "$tmp/user.c" "$tmp/user.cc"
strict=(-Wall -Wextra -Werror -pedantic -I "$build/include")

check "attnd.h compiles alone as C11" "${CC:-gcc}" -std=c11 "${strict[@]}" -c -o "$tmp/user.o" "$tmp/user.c"
cxx=$(command -v g++ || command -v clang++)
if [ -n "$cxx" ]; then
    check "attnd.h compiles alone as C++17" "$cxx" -std=c++17 "${strict[@]}" -c -o "$tmp/user.cc.o" "$tmp/user.cc"
else
    skip "attnd.h compiles alone as C++17" "there is no C++ compiler"
fi

neither() { ! grep -nE "$1" "$header"; }
check "attnd.h names neither nng nor protobuf nor files of ours" \
    neither '#include ["<](nng|proto|google|protobuf)|nng_|Attnd__|ProtobufC'
macros() { "${CC:-gcc}" -dM -E -x c "$1" | awk '{print $2}' | sort; }
only_ours() {
    printf '#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n' >"$tmp/system.h"
    macros "$tmp/system.h" >"$tmp/system"
    macros "$header" | comm -13 "$tmp/system" - | tee "$tmp/ours"
    grep -q '^ATTND_API$' "$tmp/ours" && ! grep -v '^ATTND_' "$tmp/ours"
}
check "attnd.h defines no macro without ATTND_ before it" only_ours

declared() {
    grep -ohE 'ATTND_API [^;(]*\(' "$header" | grep -oE 'attnd_[a-z0-9_]+ *\($' | tr -d '( ' | sort -u
}
same() {
    declared >"$tmp/declared"
    nm -D --defined-only "$lib/libattnd.so.0" | awk '{print $3}' | grep -v '^__\|^_[A-Z]\|^_init\|^_fini' | sort -u >"$tmp/shown"
    [ -s "$tmp/declared" ] && diff "$tmp/declared" "$tmp/shown"
}
sanitized=$(nm -D "$lib/libattnd.so.0" | grep -c '__asan_\|__tsan_')
if [ "$sanitized" = 0 ]; then
    check "libattnd.so shows what attnd.h declares and nothing else" same
    run_shared() {
        "${CC:-gcc}" -o "$tmp/shared" "$tmp/user.o" -L "$lib" -lattnd && LD_LIBRARY_PATH=$lib "$tmp/shared" &&
            [ "$(LD_LIBRARY_PATH=$lib "$tmp/shared")" = "UNAVAILABLE UNREACHABLE: data" ]
    }
    check "a program runs with libattnd.so" run_shared
    run_static() {
        "${CC:-gcc}" -o "$tmp/static" "$tmp/user.o" "$lib/libattnd.a" -lprotobuf-c -pthread &&
            [ "$("$tmp/static")" = "UNAVAILABLE UNREACHABLE: data" ]
    }
    check "a program runs with libattnd.a" run_static
else
    skip "libattnd.so shows what attnd.h declares and nothing else" "the libraries are built with a sanitizer"
    skip "a program runs with libattnd.so" "the libraries are built with a sanitizer"
    skip "a program runs with libattnd.a" "the libraries are built with a sanitizer"
fi
echo "1..$n"
