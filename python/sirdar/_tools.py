"""doctor and selftest: what this machine runs, and whether it computes what it should."""

import os
import re
import sys
import time
from collections import namedtuple

from . import _abi, _functions, _plan, _problem

_FRAMEWORKS = ("numpy", "torch", "jax", "cupy", "ml_dtypes", "transformers")
_DTYPES = ("fp32", "bf16", "fp16", "fp8_e4m3")
_SWITCHES = (
    "SIRDAR_LOG", "SIRDAR_CACHE_DIR", "SIRDAR_KERNEL_DIR", "SIRDAR_FORCE", "SIRDAR_DUMP", "SIRDAR_NO_JIT",
    "SIRDAR_NUM_THREADS",
)  # fmt: skip


def _version_of(package):
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _chosen(op, dtype, device):
    """The name of what computes a plain causal problem, or the reason why nothing does."""
    line = f"{op} b1 s1024 h8 d64 {dtype} causal"
    try:
        return _plan.create_from_text(line, device, _problem.OPTIONS).name, None
    except (NotImplementedError, ValueError, RuntimeError) as error:
        return "nothing", str(error)


def doctor() -> str:
    """What this machine has and what will run on it, as text."""
    import platform

    lines = [f"python       {platform.python_version()} ({sys.executable})"]
    try:
        library = _abi.library()
    except RuntimeError as error:
        return "\n".join([*lines, f"sirdar       {error}"])
    path = getattr(library, "_name", "")
    lines.append(f"sirdar       {library.sirdar_version().decode()} ({path})")
    found = [f"{name} {version}" for name in _FRAMEWORKS if (version := _version_of(name))]
    lines.append(f"frameworks   {', '.join(found) or 'none'}")
    facts = _plan.create_from_text("fwd s1024 h8 causal", "", _problem.OPTIONS).explain()
    machine = [line.split(None, 1)[1] for line in facts.splitlines() if line.startswith("device ")]
    lines.append(f"cpu          {machine[0] if machine else platform.machine()}")
    gpu, reason = _chosen("fwd", "bf16", "cuda")
    lines.append(
        f"cuda         {'a plain bf16 problem runs in ' + gpu if reason is None else reason}"
    )
    for device in ("", *(("cuda",) if reason is None else ())):
        for dtype in _DTYPES:
            names = [_chosen(op, dtype, device)[0] for op in ("fwd", "bwd")]
            lines.append(f"{device or 'cpu':<5}{dtype:<10}forward {names[0]}, backward {names[1]}")
    switches = [f"{name}={os.environ[name]}" for name in _SWITCHES if name in os.environ]
    lines.append(f"environment  {', '.join(switches) or 'no SIRDAR_ switch is set'}")
    return "\n".join(lines)


# --- selftest ---------------------------------------------------------------------------------------

# name -> (shape of q, shape of k, what sirdar.attention is told). Names in capitals are made there.
_CASES = {
    "plain": ((2, 65, 4, 64), (2, 130, 4, 64), {}),
    "one query": ((3, 1, 8, 128), (3, 515, 2, 128), {"causal": True}),
    "causal, grouped heads": ((2, 129, 8, 64), (2, 129, 2, 64), {"causal": True}),
    "more queries than keys": ((1, 70, 2, 32), (1, 33, 2, 32), {"causal": True}),
    "window and sink": (
        (1, 200, 4, 64),
        (1, 200, 4, 64),
        {"window_left": 31, "window_right": 0, "sink": "SINK"},
    ),
    "softcap, bias": ((2, 40, 4, 48), (2, 77, 4, 48), {"softcap": 15.0, "bias": "BIAS"}),
    "ALiBi, odd sizes": ((1, 33, 3, 20), (1, 57, 3, 20), {"alibi": "SLOPE", "causal": True}),
    "boolean mask with empty rows": ((2, 31, 2, 64), (2, 45, 2, 64), {"mask": "MASK"}),
    "chunks": ((1, 96, 2, 64), (1, 96, 2, 64), {"chunk_size": 20}),
    "expressions": (
        (2, 50, 4, 64),
        (2, 50, 4, 64),
        {
            "score_mod": "score + slope[h] * (k - q_pos)",
            "mask_mod": "q_pos >= k && q_pos - k < 20",
            "tensors": {"slope": "SLOPE"},
        },
    ),
    "dropout": ((1, 40, 2, 64), (1, 40, 2, 64), {"dropout_p": 0.2, "dropout_seed": 7}),
}
# How many roundings of the dtype an output may be off, of the sum of the weights times |v|.
_ROUNDINGS = {"fp32": 20.0, "fp16": 3.0, "bf16": 3.0}
_EPSILON = {"fp32": 2.0**-23, "fp16": 2.0**-10, "bf16": 2.0**-7}

Outcome = namedtuple("Outcome", "case dtype implementation error ok")
Outcome.__doc__ = (
    """One line of a selftest: error is in units of what is allowed; None: nothing computes it."""
)


class Report(namedtuple("Report", "outcomes seconds")):
    """What sirdar.selftest found; its text is a table."""

    @property
    def ok(self) -> bool:
        """Whether everything that was computed is right, and something was."""
        return all(one.ok for one in self.outcomes) and any(
            one.error is not None for one in self.outcomes
        )

    def __str__(self):
        rows = [
            f"{'ok' if one.ok else 'WRONG':<6}{one.case:<38}{one.dtype:<6}{one.implementation:<22}"
            + (
                "not computed here"
                if one.error is None
                else f"{one.error:.2f} of the allowed error"
            )
            for one in self.outcomes
        ]
        failed = sum(not one.ok for one in self.outcomes)
        rows.append(f"{len(self.outcomes)} checks, {failed} wrong, {self.seconds:.1f} s")
        return "\n".join(rows)


def _named_inputs(numpy, generator, q_shape, k_shape):
    heads, slopes = q_shape[2], 2.0 ** -numpy.arange(1, q_shape[2] + 1)
    mask = generator.random((q_shape[0], 1, q_shape[1], k_shape[1])) < 0.7
    mask[:, :, 3::7] = False
    return {
        "SINK": generator.standard_normal(heads).astype("float32"),
        "SLOPE": slopes.astype("float32"),
        "BIAS": generator.standard_normal((1, heads, q_shape[1], k_shape[1])).astype("float32"),
        "MASK": mask,
    }


def _filled(options, named, convert):
    filled = {}
    for name, value in options.items():
        if isinstance(value, dict):
            filled[name] = _filled(value, named, convert)
        else:
            filled[name] = (
                convert(named[value]) if isinstance(value, str) and value in named else value
            )
    return filled


def _check(numpy, arrays, options, dtype, to_device, to_host):
    """(implementation, error in units of what is allowed) of a forward and a backward pass."""
    named, qkv, dout = arrays
    host = [to_host(array) for array in qkv]  # as rounded to the dtype
    on_host = _filled(options, named, lambda x: x)
    on_device = _filled(options, named, to_device)
    reference = dict(implementation="reference", return_lse=True)
    wanted, lse = _functions.attention(*host, **on_host, **reference)
    weighed, _ = _functions.attention(host[0], host[1], numpy.abs(host[2]), **on_host, **reference)
    out, out_lse = _functions.attention(*qkv, **on_device, return_lse=True)
    allowed = _ROUNDINGS[dtype] * _EPSILON[dtype] * (weighed + 1e-30)
    error = float((numpy.abs(to_host(out) - wanted) / allowed).max())
    options = {name: on_device[name] for name in on_device}
    try:
        gradients = _functions.backward(dout, *qkv, out, out_lse, **options)
    except NotImplementedError:
        return error
    host_options = dict(on_host, implementation="reference")
    right = _functions.backward(
        to_host(dout), *host, to_host(out), to_host(out_lse), **host_options
    )
    for got, want in zip(gradients[:3], right[:3]):
        scale = 8 * _ROUNDINGS[dtype] * _EPSILON[dtype] * (numpy.abs(want).max() + 1e-30)
        error = max(error, float(numpy.abs(to_host(got) - want).max() / scale))
    return error


def selftest(device: str = "cpu") -> Report:
    """Compares what runs here with the float64 reference on random data of a dozen kinds; a few seconds.

    device: "cpu", or "cuda" through torch. Returns a Report: ok, outcomes, and a table as its text. Needs NumPy
    (ImportError without).
    """
    if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda(:\d{1,4})?", device):
        raise ValueError(f"device: {_problem.said(device)} is none of cpu, cuda and cuda:N; pass one of them.")
    try:
        import numpy
    except ImportError:
        said = "selftest: draws its inputs with NumPy, which is not installed; pip install numpy."
        raise ImportError(said) from None
    if device == "cpu":
        dtypes = {"fp32": "float32", "fp16": "float16"}
        to_device = numpy.asarray
    else:
        try:
            import torch
        except ImportError:
            said = "selftest: reaches a GPU through torch, which is not installed; pip install torch, or pass 'cpu'."
            raise ImportError(said) from None

        if int(device[5:] or 0) >= torch.cuda.device_count():
            raise RuntimeError(f"device: torch finds no GPU to be {device}; pass 'cpu'.")
        dtypes = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}

        def to_device(array):
            return torch.from_numpy(numpy.ascontiguousarray(array)).to(device)

    def to_host(array):
        return numpy.asarray(array.float().cpu() if device != "cpu" else array, "float32")

    begin, outcomes = time.monotonic(), []
    for dtype, name in dtypes.items():
        for case, (q_shape, k_shape, options) in _CASES.items():
            generator = numpy.random.default_rng(5)
            shapes = (q_shape, k_shape, k_shape, q_shape)
            values = [generator.standard_normal(shape).astype("float32") for shape in shapes]
            if device == "cpu":
                values = [value.astype(name) for value in values]
            else:
                values = [to_device(value).to(getattr(torch, name)) for value in values]
            named = _named_inputs(numpy, generator, q_shape, k_shape)
            told = {key: value for key, value in options.items() if key != "dropout_seed"}
            try:
                plan = _functions.plan(*values[:3], **_filled(told, named, to_device))
                error = _check(
                    numpy, (named, values[:3], values[3]), options, dtype, to_device, to_host
                )
                outcomes.append(Outcome(case, dtype, plan.name, error, error <= 1))
            except NotImplementedError:
                outcomes.append(Outcome(case, dtype, "", None, True))
    return Report(outcomes, time.monotonic() - begin)
