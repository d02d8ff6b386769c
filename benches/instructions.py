#!/usr/bin/env python3
"""Counts the instructions of the decode kernels, from the PTX that CubeCL compiled.

For each kernel of a folder: registers and spilt bytes of a unit, and for each of its loops that
multiplies on tensor cores the instructions of one turn, by kind: a turn is a chunk of 64 packed
tokens (IMMA) or a round of 16 exact ones (HMMA). Blocks of a loop that are seldom entered count as
well, such as that of a row's last chunk.

Takes ptxas and nvdisasm of the CUDA toolkit, and no GPU:

  CUBECL_CUDA_DUMP_PTX=ptx cargo run --release -p benches --features cuda --bin bench -- \\
      attention --methods oscar --shapes 1x8192
  python3 benches/instructions.py ptx
"""

import argparse
import collections
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

KINDS = {
    "products": r"IMMA|HMMA",
    "logic": r"LOP3|PRMT|SHF\.|SEL$|PLOP3",
    "floats": r"FADD|FMUL|FFMA|FMNMX|FSEL|FSETP|MUFU",
    "conversions": r"I2F|F2I|F2F|HADD2",
    "integers": r"IADD|IMAD|LEA|VIADD|UIADD|ISETP|UIMAD|USHF|ULEA",
    "shuffles": r"SHFL|VOTE",
    "loads": r"LDG|LDS|LDL",
    "stores": r"STG|STS|STL",
}


def tool(name):
    """A tool of the toolkit: on the path, or where the toolkit usually is."""
    found = shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")
    if not found:
        sys.exit(f"{name} was not found: it comes with the CUDA toolkit; put its bin folder on the PATH")
    return found


def assembled(ptx, ptxas, nvdisasm):
    """(registers, spilt bytes, lines of assembly) of a PTX file."""
    arch = re.search(r"^\.target (\w+)", ptx.read_text(), re.M).group(1)
    with tempfile.TemporaryDirectory() as folder:
        cubin = pathlib.Path(folder, "kernel.cubin")
        command = [ptxas, "-v", f"-arch={arch}", ptx, "-o", cubin]
        log = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        lines = subprocess.run([nvdisasm, "-c", cubin], check=True, capture_output=True, text=True)
    registers = re.search(r"Used (\d+) registers", log)
    spilt = re.search(r"(\d+) bytes spill stores", log)
    return int(registers.group(1)), int(spilt.group(1)), lines.stdout.splitlines()


def loops(lines):
    """Loops, innermost first: lists of operations, from a label to the branch back to it."""
    operations, labels, found = [], {}, []
    for line in lines:
        if label := re.match(r"(\.L_x_\d+):", line):
            labels[label.group(1)] = len(operations)
        if not (instruction := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+ )?(.*?);", line)):
            continue
        operations.append(instruction.group(1).split()[0])
        target = re.search(r"BRA.*`\((\.L_x_\d+)\)", line)
        if target and target.group(1) in labels:
            found.append(operations[labels[target.group(1)] :])
    return sorted(found, key=len)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="where CubeCL left the PTX")
    folder = parser.parse_args().folder
    files = sorted(path for path in folder.glob("**/*") if path.is_file())
    kernels = [path for path in files if ".entry decode_f" in path.read_text(errors="replace")]
    if not kernels:
        sys.exit(f"{folder} holds no decode kernel: run a benchmark with CUBECL_CUDA_DUMP_PTX={folder}")
    tools = tool("ptxas"), tool("nvdisasm")
    print("| kernel | registers | spilt | turn | instructions | " + " | ".join(KINDS) + " | others |")
    print("|---|--:|--:|---|--:|" + "--:|" * (len(KINDS) + 1))
    for ptx in kernels:
        registers, spilt, lines = assembled(ptx, *tools)
        for product, turn in [("IMMA", "64 packed tokens"), ("HMMA", "16 exact tokens")]:
            loop = next((loop for loop in loops(lines) if any(product in op for op in loop)), None)
            if loop is None:
                continue
            kind = lambda op: next((kind for kind, names in KINDS.items() if re.match(names, op)), "others")
            counts = collections.Counter(map(kind, loop))
            row = [ptx.stem, registers, spilt, turn, len(loop), *(counts[kind] for kind in KINDS), counts["others"]]
            print("| " + " | ".join(map(str, row)) + " |")


if __name__ == "__main__":
    main()
