"""compute-sanitizer over a smoke set of problems on a GPU, each compared with float64 by `sirdar check` too.

    python3 tests/device/sanitize.py build/release/sirdar [--tools memcheck,racecheck,initcheck,synccheck]
        [--only causal] [--jobs 8] [--logs FOLDER]

Prints a line for each tool and problem, and what is wrong; ends with 1 if anything is. Tools run side by
side, each with a temporary folder of its own, since they keep files there.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

TOOLS = "memcheck,racecheck,initcheck,synccheck"
# Small: racecheck makes kernels a thousand times slower.
PROBLEMS = (
    "fwd b1 s300 h2 d64 bf16 causal lse",
    "fwd b1 s300 h2 d128 bf16",
    "fwd b1 s300 h2 d256 bf16 causal",
    "fwd b1 s300 h2 d128 bf16 causal document",
    "fwd b1 s300 h2 d128 bf16 mask:qk",
    "fwd b1 s304 h2 d128 bf16 bias:bhqk:bf16",  # rows that TMA reaches
    "fwd b1 s300 h2 d128 fp16 softcap:20",
    "fwd b1 s300 h2 d128 bf16 alibi causal window:70,",
    "fwd b2 sq150 sk190 ragged:210,320 h2 d128 bf16 causal",
    "fwd b1 sq1 sk500 hq8 hkv2 d128 bf16",
    "fwd b1 sq3 sk3000 hq8 hkv2 d128 bf16 causal sink lse",  # keys split among thread blocks
    "bwd b1 s200 h2 d64 bf16 causal",
    "bwd b1 s200 h2 d128 bf16 causal",
    "bwd b1 sq150 sk200 hq4 hkv2 d128 bf16",
    "bwd b1 s200 h1 d256 bf16",
    "bwd b1 s200 h1 d256 bf16 causal",
    "bwd b1 s200 h2 d128 bf16 softcap:20",
    "bwd b1 s200 h2 d128 bf16 causal document",
    "bwd b1 s200 h2 d128 bf16 bias:bhqk:bf16",
    "bwd b1 s200 h2 d128 bf16 alibi",
    "bwd b1 s300 h2 d128 bf16 causal chunk:128",
    "bwd b1 s200 h2 d128 fp16 causal",
    "bwd b2 sq150 sk190 ragged:210,320 h2 d128 bf16",
)
CLEAN = re.compile(r"(ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards)")


def run(sirdar, tool, problem, seconds):
    """What it printed, and whether all of it is right."""
    command = ["compute-sanitizer", "--tool", tool, "--print-limit", "6"]
    if tool == "racecheck":
        command += ["--racecheck-report", "all"]
    command += [sirdar, "check", problem, "--backend", "cuda"]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"TMPDIR": folder}
        try:
            done = subprocess.run(command, env=environment, timeout=seconds, text=True, check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except subprocess.TimeoutExpired:
            return f"no end after {seconds} s", False
    return done.stdout, done.returncode == 0 and CLEAN.search(done.stdout) is not None


def what_is_wrong(output):
    """The lines that say it, without the stack of the host."""
    lines = [line for line in output.splitlines() if "Host Frame" not in line and line.strip("= ")]
    return "\n".join(f"    {line}" for line in lines[-12:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("sirdar")
    parser.add_argument("--tools", default=TOOLS)
    parser.add_argument("--only", default="", help="problems that have this in them")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=120, help="for one tool and problem")
    parser.add_argument("--logs", type=pathlib.Path, help="a folder for what each printed")
    arguments = parser.parse_args()
    pairs = [(tool, problem) for problem in PROBLEMS if arguments.only in problem
             for tool in arguments.tools.split(",")]
    failed = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = pool.map(lambda pair: run(arguments.sirdar, *pair, arguments.seconds), pairs)
        for (tool, problem), (output, is_right) in zip(pairs, results):
            print(f"{'clean ' if is_right else 'WRONG '} {tool:9} {problem}", flush=True)
            if arguments.logs:
                name = re.sub(r"[^A-Za-z0-9]+", "_", f"{tool} {problem}")
                (arguments.logs / f"{name}.txt").write_text(output)
            if not is_right:
                failed += 1
                print(what_is_wrong(output), flush=True)
    print(f"{len(pairs) - failed} of {len(pairs)} clean")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
