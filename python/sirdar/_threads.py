"""Whose threads compute: torch's, for tensors of torch on the CPU; the library's own for all others.

Two pools that are used in turns are slow: threads of OpenMP spin for a while after their work, on the cores
that the other pool wants. So the library borrows the OpenMP that torch works with; torch.set_num_threads
then holds for both.
"""

import ctypes
import os

from . import _abi

_NAMES = ("libgomp", "libomp", "libiomp5")
_found = {}  # module -> address of a sirdar_executor, or None


def _loaded_runtimes():
    """Files of the OpenMP runtimes that this process has loaded."""
    try:
        with open("/proc/self/maps") as maps:
            lines = maps.read().splitlines()
    except OSError:
        return set()
    files = (line.split(maxsplit=5)[-1] for line in lines if "/" in line)
    return {file for file in files if os.path.basename(file).startswith(_NAMES)}


def _of_torch(torch):
    """The executor over torch's OpenMP; None where it has none, or where there are several to choose from."""
    if not torch.backends.openmp.is_available():
        return None
    runtimes = _loaded_runtimes()
    home = os.path.dirname(torch.__file__)
    candidates = [file for file in runtimes if file.startswith(home)] or list(runtimes)
    if len(candidates) != 1:
        return None
    executor = _abi.made(_abi.Executor)
    status = _abi.library().sirdar_openmp_executor(
        candidates[0].encode(), ctypes.addressof(executor)
    )
    return executor if status == 0 else None


def _forget_in_child():
    """GNU's OpenMP does not survive a fork; the library's own threads do, so a child works with those."""
    from . import _functions

    _found["torch"] = None
    _functions._plans.clear()
    _functions.prepared.clear()


def executor_of(kind):
    """The address of the struct that plans for this kind of array are given, or None."""
    torch = getattr(kind, "torch", None)
    if torch is None:
        return None
    if "torch" not in _found:
        _found["torch"] = _of_torch(torch)
        if _found["torch"] is not None and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_forget_in_child)
    executor = _found["torch"]
    return None if executor is None else ctypes.addressof(executor)
