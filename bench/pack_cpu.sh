#!/usr/bin/env bash
# Packs the command and the unit tests with measure.sh, for a machine that has neither a compiler nor
# the libraries: bench/pack_cpu.sh [FOLDER], by default build/cpu_pack. The other machine needs a glibc
# at least as new as this one's.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${1:-$root/build/cpu_pack}
cmake -S "$root" -B "$root/build/portable" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_EXE_LINKER_FLAGS="-static-libstdc++ -static-libgcc" >/dev/null
cmake --build "$root/build/portable" --target sirdar_cli test_unit
mkdir -p "$folder"
cp "$root/build/portable/sirdar" "$root/build/portable/tests/test_unit" \
  "$root/bench/suites/cpu_bf16.txt" "$root/bench/suites/cpu_forward.txt" "$folder"
strip "$folder/sirdar" "$folder/test_unit"

cat >"$folder/measure.sh" <<'MEASURE'
#!/usr/bin/env bash
# Tests of the CPU kernels on this machine, then times. The second of a pair of bf16 runs has fp32
# arithmetic, on the same data.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
./sirdar doctor
./test_unit --gtest_brief=1 --gtest_filter='CpuBf16*:CpuNarrow*:CpuKernels*:CpuForward*:CpuFormats*'
result=$?
./sirdar check fwd sq130 sk300 hq4 hkv2 d64 bf16 causal lse
for threads in 1 2; do
  ./sirdar bench cpu_bf16.txt --threads "$threads" --json --max-time 3
  ./sirdar bench cpu_bf16.txt --threads "$threads" --json --max-time 3 --isa avx512
done
./sirdar bench cpu_forward.txt --threads 1 --json --max-time 3
exit "$result"
MEASURE
chmod +x "$folder/measure.sh"
du -sh "$folder"
