"""What PyTorch reaches on this GPU at the shapes of gpu.c, and at a matrix product: rows of results.tsv.

    peers.py [--tsv FILE] [--commit C]

scaled_dot_product_attention by its flash and cuDNN backends, bf16, keys without pages. Grouped heads in
each form a backend takes; the fastest counts: as they are (gqa), the heads of a group as rows of one head
(rows, decode only), keys repeated beforehand (repeated, not counted in the time). Calls are enqueued
behind a pause, so that events see the device alone, and go over copies of the keys that together do not
stay in L2. Without PyTorch or a GPU all is skipped.
"""

import argparse
import datetime
import statistics
import sys

HQ, HKV, D = 32, 8, 128
N_WARM, N_TIMED = 5, 30
ROTATED_BYTES = 256 << 20

DECODE = [(1, 8192), (1, 131072), (16, 8192), (64, 8192), (128, 4096), (256, 1024)]
PREFILL = [(16, 1024), (4, 4096), (1, 16384)]

n_skipped = 0


def skip(what, why):
    global n_skipped
    n_skipped += 1
    print(f"skipped: {what}: {' '.join(str(why).split())[:160]}", flush=True)


class Rows:
    def __init__(self, args, machine):
        self.tsv = open(args.tsv, "a") if args.tsv else None
        self.last = [machine, datetime.date.today().isoformat(), args.commit]

    def add(self, what, shape, seconds, rate, unit, ratio="-", of="-"):
        print(f"{what:24} {shape:24} {seconds * 1e6:10.1f} us {rate:9.1f} {unit:8} {ratio:>6} of {of}", flush=True)
        if self.tsv:
            row = [what, shape, f"{seconds * 1e6:.1f}", f"{rate:.1f} {unit}", ratio, of] + self.last
            self.tsv.write("\t".join(row) + "\n")
            self.tsv.flush()


def median_seconds(torch, call):
    """call(i) enqueues one call; the median between the events around each."""
    for i in range(N_WARM):
        call(i)
    torch.cuda.synchronize()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(N_TIMED + 1)]
    torch.cuda._sleep(20_000_000)  # cycles: about 10 ms, in which all calls are enqueued
    marks[0].record()
    for i in range(N_TIMED):
        call(i)
        marks[i + 1].record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in zip(marks, marks[1:])) * 1e-3


def matrix_product(torch, rows):
    n = 8192
    a, b, c = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    seconds = median_seconds(torch, lambda i: torch.mm(a, b, out=c))
    rows.add("torch_matmul", "8192^3 bf16", seconds, 2 * n**3 / seconds * 1e-12, "TFLOP/s")
    return 2 * n**3 / seconds * 1e-12


def forms(q, k, v, decode):
    """(name, q, k, v, arguments) of the same attention; k and v are made when the form is used."""
    yield "gqa", q, lambda: (k, v), {"enable_gqa": True}
    if decode:
        grouped = q.view(q.shape[0], HKV, HQ // HKV, D)
        yield "rows", grouped, lambda: (k, v), {}
    yield "repeated", q, lambda: tuple([t.repeat_interleave(HQ // HKV, 1) for t in x] for x in (k, v)), {}


def attention(torch, rows, batch, n, decode, causal, product):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as attend

    shape = f"{batch}x{n} q1 bf16" if decode else f"{batch}x{n} {'causal' if causal else 'full'} bf16"
    kv_bytes = 2 * batch * n * HKV * D * 2
    copies = max(1, -(-ROTATED_BYTES // kv_bytes)) if decode else 1

    def random(heads, length):
        return torch.randn(batch, heads, length, D, device="cuda", dtype=torch.bfloat16)

    q = random(HQ, 1 if decode else n)
    k, v = ([random(HKV, n) for _ in range(copies)] for _ in range(2))
    for backend, name in ((SDPBackend.FLASH_ATTENTION, "flash"), (SDPBackend.CUDNN_ATTENTION, "cudnn")):
        best = None
        for form, queries, keys, arguments in forms(q, k, v, decode):
            if form == "repeated" and best:
                continue  # reads each key once per query head
            try:
                ks, vs = keys()
                with sdpa_kernel(backend):
                    seconds = median_seconds(
                        torch, lambda i: attend(queries, ks[i % copies], vs[i % copies], is_causal=causal, **arguments))
            except RuntimeError as error:
                print(f"  {name} {form} {shape}: {' '.join(str(error).split())[:120]}", flush=True)
                continue
            finally:
                ks = vs = None
            if not best or seconds < best[0]:
                best = seconds, form
        what = f"torch_{name}_{best[1]}" if best else f"torch_{name}"
        if not best:
            skip(f"{what} {shape}", "no form of grouped heads is taken")
        elif decode:
            moved = kv_bytes + 2 * batch * HQ * D * 2
            rows.add(what, shape, best[0], moved / best[0] * 1e-9, "GB/s")
        else:
            pairs = n * (n + 1) / 2 if causal else n * n
            rate = 4 * batch * HQ * D * pairs / best[0] * 1e-12
            rows.add(what, shape, best[0], rate, "TFLOP/s", f"{rate / product:.3f}",
                     f"matrix product {product:.1f} TFLOP/s")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tsv")
    parser.add_argument("--commit", default="unknown")
    args = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        skip("peers", error)
        return
    if not torch.cuda.is_available():
        skip("peers", "PyTorch sees no GPU")
        return
    rows = Rows(args, torch.cuda.get_device_name(0))
    print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}, "
          f"median of {N_TIMED}", flush=True)
    product = matrix_product(torch, rows)
    for batch, n in DECODE:
        attention(torch, rows, batch, n, True, False, product)
    skip("64xragged q1 bf16", "scaled_dot_product_attention takes no lengths")
    for causal in (True, False):
        for batch, n in PREFILL:
            attention(torch, rows, batch, n, False, causal, product)


if __name__ == "__main__":
    main()
    print(f"peers: {n_skipped} skipped")
    sys.exit(0)
