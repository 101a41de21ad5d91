"""test_check_rooms.py: a file that leaves its room is named, one that keeps to it is not."""

import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))

import tap

STRAYS = (
    ("kvcache/a.c", '#include "kernels/attention.h"', "kvcache/a.c includes kernels/attention.h"),
    ("kernels/a.c", '#include "daemon/queue.h"', "kernels/a.c includes daemon/queue.h"),
    ("config/a.c", '#include "kvcache/pool.h"', "config/a.c includes kvcache/pool.h"),
    ("proto/types.h", '#include "proto/arena.h"', "proto/types.h includes proto/arena.h"),
    ("proto/a.c", '#include "err.h"', 'proto/a.c: "err.h" is not from the root'),
    ("daemon/attnctl.c", '#include "config/config.h"', "daemon/attnctl.c includes config/config.h"),
    (
        "daemon/attnctl_a.c",
        '#include "daemon/queue.h"',
        "daemon/attnctl_a.c includes daemon/queue.h",
    ),
    ("daemon/f.c", "int x = MHD_YES;", "daemon/f.c speaks microhttpd: MHD_YES"),
    ("daemon/a.c", '#include "tests/support/oom.h"', "daemon/a.c includes tests/support/oom.h"),
    (
        "tests/oracle/a.c",
        '#include "kernels/attention.h"',
        "tests/oracle/a.c includes kernels/attention.h",
    ),
    ("kvcache/b.c", "int x = uv_run(0);", "kvcache/b.c speaks libuv: uv_run"),
    ("daemon/b.c", "int x = nng_send(0);", "daemon/b.c speaks nng: nng_send"),
    ("proto/client/a.c", "int x = nng_send(0);", "proto/client/a.c speaks nng: nng_send"),
    ("daemon/c.c", "int x = cudaMalloc(0);", "daemon/c.c speaks cuda: cudaMalloc"),
    ("daemon/d.c", "cJSON *x;", "daemon/d.c speaks cJSON: cJSON"),
    ("daemon/e.c", "Attnd__V1__Request *x;", "daemon/e.c speaks protobuf-c: Attnd__V1__Request"),
    (
        "kernels/plan.c",
        "int x = _mm256_add_ps(0);",
        "kernels/plan.c speaks intrinsics: _mm256_add_ps",
    ),
    ("kernels/b.c", "int f(void) { return printf(0); }", "kernels/b.c prints or exits: printf("),
    ("config/b.c", "void f(void) { abort(); }", "config/b.c prints or exits: abort("),
)

FINE = (
    ("kvcache/c.c", '#include "kvcache/pool.h"\n#include "proto/err.h"\n#include <stdio.h>\n'),
    ("kvcache/d.c", "/* uv_run( and printf( in a comment */ int x;\n"),
    ("kernels/cpu/a.c", "int x = _mm256_add_ps(0);\n"),
    ("kernels/cuda/a.c", "int x = cudaMalloc (0) + cuMemMap(0);\n"),
    ("daemon/control_more.c", "cJSON *x;\nint y = uv_run(0);\n"),
    ("config/c.c", "void f(void) { fprintf(0, snprintf(0)); }\n"),
    ("tests/unit/test_a.c", "cJSON *x;\nint y = uv_run(0) + nng_send(0);\n"),
)


def check(files):
    """(exit code, output) of check_rooms.sh in a tree of these files."""
    tree = tempfile.mkdtemp(prefix="attnd-rooms-")
    try:
        os.mkdir(os.path.join(tree, "scripts"))
        shutil.copy(os.path.join(ROOT, "scripts", "check_rooms.sh"), os.path.join(tree, "scripts"))
        for name, text in files:
            path = os.path.join(tree, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text + "\n")
        subprocess.run(["git", "init", "-q", tree], check=True)
        done = subprocess.run(
            ["bash", os.path.join(tree, "scripts", "check_rooms.sh")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return done.returncode, done.stdout.decode()
    finally:
        shutil.rmtree(tree)


@tap.test
def what_keeps_to_its_room_is_not_named():
    tap.equal(check(FINE), (0, "doors: every file keeps to its room\n"))


@tap.test
def every_stray_is_named_once():
    code, out = check(FINE + tuple((name, text) for name, text, _ in STRAYS))
    wanted = [f"stray: {text}" for _, _, text in STRAYS]
    got = [line for line in out.splitlines() if line.startswith("stray: ")]
    # A name that is not from the root is an include that is not allowed, too.
    got.remove("stray: proto/a.c includes err.h")
    tap.equal(sorted(got), sorted(wanted))
    tap.equal(code, 1)


if __name__ == "__main__":
    tap.main()
