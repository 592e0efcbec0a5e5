"""What a call from Python costs beside the computation, in microseconds.

usage: python bench/python_overhead.py [--rounds N]

The problem is the smallest there is (one query, one key), on one thread. The C call is sirdar_run by
ctypes on a struct that is ready, less what ctypes itself takes to call a function that does nothing;
the other rows are medians of rounds that alternate between all of them, less that C call. Uses the
package that `import sirdar` finds; torch's rows need torch.
"""

import argparse
import ctypes
import statistics
import time

import numpy as np
import sirdar
from sirdar import _abi, _plan, _tensor

CALLS = 200  # of one row in one round


def tensors_of(kind):
    q, k, v, out = (np.ones((1, 1, 1, 8), np.float32) for _ in range(4))
    if kind == "torch":
        import torch

        return [torch.from_numpy(x) for x in (q, k, v, out)]
    return [q, k, v, out]


def c_call(plan, arrays):
    """A function that runs sirdar_run on a filled struct, and one that calls what does nothing."""
    library = _abi.library()
    slot = _plan._Slot(plan)
    keep = []
    for name, array in zip(("q", "k", "v", "out"), arrays):
        pointer, layout, owner = _tensor.read(array, name)
        keep.append(owner)
        _plan._NAMED.pack_into(slot.buffer, _plan._OFFSETS[name], pointer, layout.tail)
    workspace = _plan._host_workspace(plan.workspace_bytes)
    offset = _plan._WORKSPACE_OFFSET
    _plan._WORKSPACE.pack_into(slot.buffer, offset, workspace[0], plan.workspace_bytes)
    run, handle, address = library.sirdar_run, plan._handle, slot.address
    nothing = ctypes.CDLL(None).labs
    nothing.restype, nothing.argtypes = ctypes.c_int, [ctypes.c_void_p] * 3
    kept = (slot, keep, workspace, plan)
    return lambda kept=kept: run(handle, address, None), lambda: nothing(handle, address, None)


def rows(kind):
    q, k, v, out = arrays = tensors_of(kind)
    plan = sirdar.plan(q, k, v, num_threads=1)
    attention = sirdar.attention
    yield f"{kind}: plan(q, k, v, out=out)", lambda: plan(q, k, v, out=out)
    yield f"{kind}: plan(q, k, v)", lambda: plan(q, k, v)
    yield f"{kind}: attention(q, k, v)", lambda: attention(q, k, v, num_threads=1)
    yield (
        f"{kind}: attention(..., causal=True, out=out)",
        lambda: attention(*arrays[:3], causal=True, out=out, num_threads=1),
    )
    yield (
        f"{kind}: attention(..., return_lse=True)",
        lambda: attention(q, k, v, return_lse=True, num_threads=1),
    )


def time_of(function):
    begin = time.perf_counter_ns()
    for _ in range(CALLS):
        function()
    return (time.perf_counter_ns() - begin) / CALLS / 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    kinds = ["numpy"]
    try:
        import torch  # noqa: F401

        kinds.append("torch")
    except ImportError:
        pass
    q, k, v, out = arrays = tensors_of("numpy")
    raw, nothing = c_call(sirdar.plan(q, k, v, num_threads=1), arrays)
    table = [("", raw), ("", nothing)] + [row for kind in kinds for row in rows(kind)]
    times = [[] for _ in table]
    for _ in range(rounds):
        for (_, function), record in zip(table, times):
            record.append(time_of(function))
    raw, nothing, *others = (statistics.median(record) for record in times)
    print(f"{raw - nothing:8.2f} us  the C call (a call by ctypes alone: {nothing:.2f} us)")
    for (name, _), median in zip(table[2:], others):
        print(f"{median - (raw - nothing):8.2f} us  more: {name}")


if __name__ == "__main__":
    main()
