#!/usr/bin/env bash
# The doors: which folder includes what, and where each library is spoken. Prints every stray and fails on
# any. Comments do not count.
set -euo pipefail
cd "$(dirname "$0")/.."

strays=0
stray() {
    echo "stray: $*"
    strays=$((strays + 1))
}

# An unpacked archive has no git but a list of its files.
sources=$({ sed 1d .dist || git ls-files -co --exclude-standard; } 2>/dev/null | grep -E '\.(c|h|cu|cuh)$')

# folder (a regex of paths): what its files may include from this tree (a regex of paths). The first line
# that matches a file counts.
includes='
^proto/(types|err)\.h$      ^proto/(types|err)\.h$
^proto/                     ^(proto/.*|attnd\.pb-c\.h)$
^config/                    ^(proto/(types|err)\.h|config/.*)$
^kvcache/                   ^(proto/(types|err)\.h|kvcache/.*)$
^kernels/                   ^(proto/(types|err)\.h|kernels/.*)$
^tests/oracle/              ^(proto/(types|err)\.h|tests/oracle/.*)$
^daemon/attnctl             ^(proto/.*|tests/oracle/.*|daemon/attnctl[a-z_]*\.h|.*\.def)$
^daemon/                    ^(proto|config|kvcache|kernels|daemon)/.*$|^attnd\.pb-c\.h$
^tests/                     .
'

# library: names that speak it, and the files that may.
speakers='
libuv       \buv_[a-z]                                          ^daemon/
nng         \bnng_[a-z]                                         ^tests/
microhttpd  \bMHD_                                              ^daemon/http\.c
protobuf-c  \b([Aa]ttnd__[Vv]1__|protobuf_c_|ProtobufC)         ^(proto/(decode|encode)\.c|daemon/fds\.c|proto/client/)
cJSON       \bcJSON                                             ^(config/|daemon/(control|attnctl)[a-z_]*\.[ch]|tests/)
cuda        \b(cuda[A-Z][A-Za-z]*|cu[A-Z][a-z]+[A-Za-z]*)(?=\s*\()   ^(kernels/cuda/|proto/client/cuda\.c)
intrinsics  \b_mm(256|512)?_                                    ^kernels/cpu/
'

check_includes() { # file, its text
    local pattern allowed name
    while read -r pattern allowed; do
        [[ -n "$pattern" && "$1" =~ $pattern ]] || continue
        for name in $(sed -n 's/^ *# *include *"\([^"]*\)".*/\1/p' <<<"$2"); do
            [[ "$name" =~ $allowed ]] || stray "$1 includes $name"
            [[ "$name" == */* || "$name" == attnd.pb-c.h ]] || stray "$1: \"$name\" is not from the root"
        done
        return
    done <<<"$includes"
}

check_speakers() { # file, its text
    local library pattern allowed
    [[ "$1" == tests/* && "$1" != tests/oracle/* ]] && return
    while read -r library pattern allowed; do
        [[ -n "$library" && ! "$1" =~ $allowed ]] || continue
        ! grep -Pq -- "$pattern" <<<"$2" || stray "$1 speaks $library: $(grep -Po -m1 -- "$pattern\w*" <<<"$2" | head -1)"
    done <<<"$speakers"
}

# Libraries never print, exit or abort.
check_quiet() { # file, its text
    [[ "$1" =~ ^(proto|config|kvcache|kernels|tests/oracle)/ ]] || return 0
    ! grep -Pq '(?<![\w.>])(printf|puts|putchar|perror|exit|_exit|abort) *\(' <<<"$2" ||
        stray "$1 prints or exits: $(grep -Po -m1 '(?<![\w.>])(printf|puts|putchar|perror|exit|_exit|abort) *\(' <<<"$2" | head -1)"
}

for file in $sources; do
    [ -e "$file" ] || continue
    # Comments go, directives and lines stay.
    text=$(gcc -fpreprocessed -dD -E -P -x c "$file" 2>/dev/null) || stray "$file: gcc cannot read it"
    check_includes "$file" "$text"
    check_speakers "$file" "$text"
    check_quiet "$file" "$text"
done

[ "$strays" = 0 ] || { echo "$strays strays"; exit 1; }
echo "doors: every file keeps to its room"
