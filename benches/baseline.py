#!/usr/bin/env python3
"""Decode attention in BF16: the baseline of the benchmark `attention`.

Times PyTorch's scaled_dot_product_attention with each of its fused backends (flash, cuDNN,
memory-efficient): one query token for each sequence, 32 query and 8 KV heads of 128 channels. The
four query heads of a KV head are stacked as rows, [B, 8, 4, 128] against [B, 8, S, 128], so that
every key and value is read once. As in `attention`, calls rotate over copies of the input that
together exceed the cache, are captured in one CUDA graph, and the time is that of a replay over
its calls. Each backend is first checked against float64.

    python3 benches/baseline.py
    python3 benches/baseline.py --shapes 1x8192,8x32K --out /tmp/results
"""

import argparse
import datetime
import json
import math
import pathlib
import re
import subprocess
import sys
import time

DEVICE = "cuda"
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
SHAPES = "1x2K,1x8K,1x32K,1x128K,8x32K,32x8K,16x64K"
# The same as in lib/timing.rs.
COLD_BYTES = 300_000_000
CALLS = 32
SAMPLE = 0.02
# BF16 rounds the output to 8 bits, which alone costs 1.7e-3.
TOLERANCE = 1e-2


def shape(text):
    """(batch, context) of 8x32768 or 8x32K."""
    match = re.fullmatch(r"(\d+)x(\d+)([kK]?)", text.strip())
    if not match or int(match[1]) == 0 or int(match[2]) == 0:
        raise argparse.ArgumentTypeError(f"`{text}` is no shape: write 8x32768 or 8x32K")
    return int(match[1]), int(match[2]) * (1024 if match[3] else 1)


def shapes(text):
    return [shape(part) for part in text.split(",")]


def repeats(text):
    count = int(text)
    if count < 5:
        raise argparse.ArgumentTypeError("at least 5")
    return count


def cache_bytes(batch, context):
    """Keys and values in BF16."""
    return 2 * 2 * batch * KV_HEADS * context * HEAD_DIM


def moved_bytes(batch, context):
    """Keys, values, query and output in BF16."""
    return cache_bytes(batch, context) + 2 * 2 * batch * HEADS * HEAD_DIM


def copies_of(batch, context, free):
    """Copies to rotate over: more than the cache holds, 2 to 64, in 60 % of the free memory."""
    each = cache_bytes(batch, context)
    wanted = min(max(math.ceil(COLD_BYTES / each), 2), 64)
    return min(wanted, int(0.6 * free / each))


def make(torch, batch, context):
    """Random query, keys and values."""
    sizes = [HEADS // KV_HEADS, context, context]
    return [
        torch.randn(batch, KV_HEADS, rows, HEAD_DIM, device=DEVICE, dtype=torch.bfloat16)
        for rows in sizes
    ]


def attend(torch, inputs):
    return torch.nn.functional.scaled_dot_product_attention(*inputs)


def error(torch, backend, batch=3, context=1000):
    """The norm of the error over that of the result in float64."""
    from torch.nn.attention import sdpa_kernel

    query, key, value = make(torch, batch, context)
    with sdpa_kernel(backend):
        found = attend(torch, (query, key, value)).double()
    weights = query.double() @ key.double().transpose(-1, -2) / math.sqrt(HEAD_DIM)
    expected = torch.softmax(weights, -1) @ value.double()
    return ((found - expected).norm() / expected.norm()).item()


def sample(torch, run, runs):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(runs):
        run()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(torch, backend, inputs, count, quick):
    """Microseconds of one call, sorted, and the calls in the graph."""
    from torch.nn.attention import sdpa_kernel

    copies = len(inputs)
    calls = copies if quick else math.ceil(CALLS / copies) * copies
    with sdpa_kernel(backend):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for one in inputs[:2]:
                attend(torch, one)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = [attend(torch, inputs[i % copies]) for i in range(calls)]
    sample(torch, graph.replay, 1)
    once = sample(torch, graph.replay, 1)
    runs = 1 if quick else max(math.ceil(SAMPLE / max(once, 1e-6)), 1)
    sample(torch, graph.replay, runs)
    times = [sample(torch, graph.replay, runs) * 1e6 / (runs * calls) for _ in range(count)]
    if not all(torch.isfinite(output).all() for output in outputs):
        raise RuntimeError("the result is not finite")
    return sorted(times), calls


def copy_rate(torch):
    """TB/s of a device copy of 4 GiB, bytes read and written."""
    source = torch.randint(0, 255, (4 << 30,), dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    target.copy_(source)
    times = sorted(sample(torch, lambda: target.copy_(source), 10) / 10 for _ in range(5))
    return 2 * source.numel() / times[2] / 1e12


def driver():
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    lines = found.stdout.split()
    return lines[0] if lines else "unknown"


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shapes", type=shapes, default=SHAPES, help=f"batch x context (default {SHAPES})"
    )
    parser.add_argument(
        "--repeats", type=repeats, default=7, help="timed samples of each row, at least 5"
    )
    parser.add_argument("--quick", action="store_true", help="short samples, to try it out")
    parser.add_argument(
        "--out", type=pathlib.Path, help="folder of baseline.json (default benches/results/DEVICE)"
    )
    return parser.parse_args()


def main():
    options = arguments()
    try:
        import torch
        from torch.nn.attention import SDPBackend
    except ImportError as missing:
        sys.exit(f"{missing}: this needs PyTorch 2.5 or later with CUDA")
    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no CUDA device: run this where the other benchmarks ran")
    torch.manual_seed(0)
    name = torch.cuda.get_device_name()
    versions = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": str(torch.backends.cudnn.version()),
        "driver": driver(),
    }
    results = {
        "bench": "baseline",
        "device": name,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": versions,
        "quick": options.quick,
        "copy_tb_s": copy_rate(torch),
        "checks": [],
        "rows": [],
        "refused": [],
    }
    torch.cuda.empty_cache()
    folder = options.out or pathlib.Path("benches/results") / re.sub(
        r"[^a-z0-9]+", "-", name.lower()
    ).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "baseline.json"

    print(name, versions, f"copy {results['copy_tb_s']:.3f} TB/s", flush=True)
    backends = {}
    for label, backend in [
        ("flash", SDPBackend.FLASH_ATTENTION),
        ("cudnn", SDPBackend.CUDNN_ATTENTION),
        ("efficient", SDPBackend.EFFICIENT_ATTENTION),
    ]:
        try:
            found = error(torch, backend)
        except RuntimeError as failure:
            reason = str(failure).splitlines()[0]
        else:
            results["checks"].append({"backend": label, "relative_error": found})
            print(f"{label}: error against float64 {found:.2e}", flush=True)
            # Written so that NaN fails.
            if found < TOLERANCE:
                backends[label] = backend
                continue
            reason = f"wrong: relative error {found:.2e} against float64"
        print(f"{label}: {reason}", flush=True)
        results["refused"] += [
            {"name": label, "batch": batch, "context": context, "reason": reason}
            for batch, context in options.shapes
        ]

    print("| shape | backend | us | min | max | TB/s |\n|---|---|--:|--:|--:|--:|")
    for batch, context in options.shapes:
        free = torch.cuda.mem_get_info()[0]
        copies = copies_of(batch, context, free)
        inputs = [make(torch, batch, context) for _ in range(copies)] if copies >= 2 else []
        for label, backend in backends.items():
            row = {"backend": label, "batch": batch, "context": context}
            try:
                if copies < 2:
                    raise RuntimeError("two copies do not fit the memory")
                times, calls = measure(torch, backend, inputs, options.repeats, options.quick)
            except RuntimeError as failure:
                reason = str(failure).splitlines()[0]
                print(f"{batch}x{context} {label}: {reason}", flush=True)
                refused = {"name": label, "batch": batch, "context": context, "reason": reason}
                results["refused"].append(refused)
                continue
            median, size = times[len(times) // 2], moved_bytes(batch, context)
            row |= {
                "copies": copies,
                "calls": calls,
                "repeats": options.repeats,
                "bytes": size,
                "median_us": median,
                "min_us": times[0],
                "max_us": times[-1],
                "tb_s": size / median / 1e6,
            }
            results["rows"].append(row)
            print(
                f"| {batch}x{context} | {label} | {median:.2f} | {times[0]:.2f} "
                f"| {times[-1]:.2f} | {row['tb_s']:.3f} |",
                flush=True,
            )
        del inputs
        torch.cuda.empty_cache()
        path.write_text(json.dumps(results, indent=2) + "\n")
    path.write_text(json.dumps(results, indent=2) + "\n")
    print(path)


if __name__ == "__main__":
    main()
