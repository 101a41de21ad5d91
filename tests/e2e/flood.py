"""flood.py: a bad neighbour of the data socket, as a process of its own: flood.py KIND DIR.

ping    sends as fast as it can and reads what comes
resend  sends one request, under one id, over and over, and reads
deaf    sends and never reads; connects again when it is cut off
slow    one byte a second
idle    500 connections that say nothing after their greeting

Says "up" when it is connected; sends from SIGUSR2 to SIGUSR1, and reads all the time. It is no client
of ours: the same flood fits any SP REP socket.
"""

import os
import signal
import socket
import struct
import sys
import threading
import time

GREETING = bytes.fromhex("0053500000300000")
PING = b"\x82\x01\x00"  # Request{ping{}}
RESENT = b"\x09\x07\0\0\0\0\0\0\0" + PING  # the same with id 7
N_IDLE = 500
N_TOGETHER = 32  # frames


def connect(directory):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(os.path.join(directory, "data"))
    sock.sendall(GREETING)
    return sock


def frames(payload):
    body = b"".join(
        struct.pack(">BQI", 1, len(payload) + 4, 0x80000000 | i) + payload
        for i in range(N_TOGETHER)
    )
    return body


go = threading.Event()


def up():
    signal.signal(signal.SIGUSR1, lambda *_: go.clear())
    signal.signal(signal.SIGUSR2, lambda *_: go.set())
    print("up", flush=True)


def loud(directory, payload):
    sock, batch = connect(directory), frames(payload)

    def read():
        while sock.recv(1 << 16):
            pass
        os._exit(1)  # cut off

    threading.Thread(target=read).start()
    up()
    while go.wait():
        sock.sendall(batch)


def deaf(directory):
    batch = frames(PING)
    up()
    while go.wait():
        try:
            sock = connect(directory)
            while go.wait():
                sock.sendall(batch)
        except OSError:
            time.sleep(0.01)


def slow(directory):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(os.path.join(directory, "data"))
    up()
    go.wait()
    try:
        for byte in GREETING + frames(PING):
            sock.send(bytes([byte]))
            time.sleep(1)
    except OSError:
        pass  # It was too slow for them.
    time.sleep(3600)


def idle(directory):
    socks = [connect(directory) for _ in range(N_IDLE)]
    up()
    time.sleep(3600)
    del socks


if __name__ == "__main__":
    kind, where = sys.argv[1:]
    {
        "ping": lambda: loud(where, PING),
        "resend": lambda: loud(where, RESENT),
        "deaf": lambda: deaf(where),
        "slow": lambda: slow(where),
        "idle": lambda: idle(where),
    }[kind]()
