"""The package of this checkout over its release build, or whatever `import sirdar` finds.

SIRDAR_TEST_INSTALLED=1: the installed package, as when a wheel is tested.
"""

import os
import pathlib
import sys

# Threads of torch's OpenMP spin between its operators, on cores that the machine's other work wants.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cli"))  # formula.py: attention by its definition
if not os.environ.get("SIRDAR_TEST_INSTALLED"):
    sys.path.insert(0, str(ROOT / "python"))


@pytest.fixture
def random():
    """random(shape, dtype): standard normal numbers, the same in every run."""
    generator = np.random.default_rng(7)

    def draw(*shape, dtype=np.float32):
        return generator.standard_normal(shape).astype(dtype)

    return draw
