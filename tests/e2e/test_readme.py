"""test_readme.py: the README's clients, taken out of it and run as they stand there."""

import os
import re
import subprocess
import sys
import tempfile

from support import BUILD, ROOT, Daemon

import tap

EXPECTED = "token 0: 0.0\ntoken 1: 0.5\ntoken 2: 1.0\n"
daemon = None


def block(name):
    """The fenced block below the comment <!-- name -->."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as page:
        found = re.search(rf"<!-- {re.escape(name)} -->\n```\w+\n(.*?)\n```", page.read(), re.S)
    assert found, f"README.md has no block {name}"
    return found.group(1) + "\n"


def run(command, **env):
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        env=dict(os.environ, RUNTIME_DIRECTORY=daemon.dir, **env),
    )
    return done.returncode, done.stdout.decode()


@tap.test
def the_c_client_runs_as_it_stands_there():
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "client.c"), os.path.join(folder, "client")
        with open(source, "w", encoding="utf-8") as out:
            out.write(block("client.c"))
        # A sanitized library needs the sanitizers in the program.
        flags = ["-fsanitize=address,undefined"] if "asan" in os.path.basename(BUILD) else []
        flags += [f"-I{BUILD}/include", f"-L{BUILD}/lib", "-lattnd"]
        subprocess.run(
            ["gcc", source, "-Wall", "-Wextra", "-Werror", *flags, "-o", program], check=True
        )
        tap.equal(run([program], LD_LIBRARY_PATH=f"{BUILD}/lib"), (0, EXPECTED))


@tap.test
def the_python_client_runs_as_it_stands_there():
    command = [sys.executable, "-c", block("client.py")]
    tap.equal(run(command, PYTHONPATH=f"{BUILD}/python"), (0, EXPECTED))


@tap.test
def the_shell_client_runs_as_it_stands_there():
    code, text = run(["bash", "-euo", "pipefail", "-c", block("client.sh")])
    lines = text.splitlines()
    tap.equal(code, 0)
    tap.equal(lines[0], "true")
    assert "decode_portable" in lines, text
    assert int(lines[-1].strip('"')) >= 0, text


@tap.test
def what_an_operator_types_is_answered_as_shown():
    path = f"{BUILD}/bin:{os.environ['PATH']}"
    code, text = run(["bash", "-euo", "pipefail", "-c", block("operations.sh")], PATH=path)
    tap.equal(code, 0)
    assert re.match(r"attnd \S+  cpu \w+  \d+ threads  ready  up \d+ s\nrequests/s ", text), text
    tap.equal(len(re.findall(r"^counters$", text, re.M)), 2)
    assert text.endswith("applied  nothing\nneeds_restart  nothing\n"), text


@tap.test
def the_memory_of_a_preset_is_the_one_shown():
    done = subprocess.run(
        [f"{BUILD}/bin/attnd", "--check-config", "config/presets/llama-3-8b.json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as page:
        assert f"```\n{done.stdout.decode()}```\n" in page.read()


with Daemon() as daemon:
    tap.main()
