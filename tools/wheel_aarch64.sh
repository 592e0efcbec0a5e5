#!/usr/bin/env bash
# Builds the Python wheel for 64-bit Arm into dist/ with Debian's cross compiler, and runs its library.
# usage: tools/wheel_aarch64.sh [ROOT]   needs g++-aarch64-linux-gnu, qemu-user, and the tools of
# requirements-wheel.txt in the Python of $VIRTUAL_ENV.
#
# The wheel is the same pure Python around another library, so only the library is compiled and tried: the C
# example and the tests of the C API run under qemu, the unpacked package is compared with the checkout's.
# ROOT: a folder into which Debian's arm64 packages of python3.11-minimal, libpython3.11-stdlib and what they need
# are unpacked (apt-get download, dpkg-deb -x); that Python imports the package, with NumPy, and runs its selftest.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${VIRTUAL_ENV:?}/bin/python
library=$PWD/build/aarch64/wheel/libsirdar.so
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cmake --preset aarch64 >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
cmake --build --preset aarch64 --target sirdar_wheel

# The tag says how new the machine's C library must be: as new as the newest symbol asked for.
newest=$(aarch64-linux-gnu-objdump -T "$library" | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -n 1)
needed=$(aarch64-linux-gnu-objdump -p "$library" | sed -n 's/^ *NEEDED *//p')
for name in $needed; do
  case $name in
    libc.so.6 | libm.so.6 | libgcc_s.so.1 | ld-linux-aarch64.so.1 | libpthread.so.0 | libdl.so.2) ;;
    *) echo "wheel: $name is not on every machine." >&2; exit 1 ;;
  esac
done
platform=manylinux_2_${newest#GLIBC_2.}_aarch64

"$python" -m build --wheel --no-isolation --outdir "$scratch" "-Cbuild-dir=$scratch/build" \
  "-Ccmake.define.SIRDAR_PREBUILT=$library" . >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
mkdir -p dist
"$python" tools/retag_wheel.py "$scratch"/sirdar-*.whl "$platform" dist
wheel=$(find dist -name "sirdar-*-$platform.whl" -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2-)

mkdir "$scratch/unpacked"
"$python" -m zipfile -e "$wheel" "$scratch/unpacked"
diff -r -x __pycache__ -x '*.so' python/sirdar "$scratch/unpacked/sirdar"
packed=$scratch/unpacked/sirdar/libsirdar.so
for source in examples/attention.c tests/c/c_api_test.c; do
  aarch64-linux-gnu-gcc -std=c11 -Wall -Werror -Iinclude "$source" "$packed" -lm \
    -Wl,-rpath,"${packed%/*}" -o "$scratch/program"
  qemu-aarch64 -L /usr/aarch64-linux-gnu "$scratch/program" | tail -n 1
done
if [ -n "${1:-}" ]; then
  "$python" -m pip install -q --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 \
    --platform manylinux2014_aarch64 --target "$scratch/unpacked" numpy==2.2.6
  qemu-aarch64 -L "$1" -E PYTHONPATH="$scratch/unpacked" "$1/usr/bin/python3.11" -m sirdar selftest | tail -n 1
fi
echo "$wheel: $(stat -c %s "$wheel") bytes"
