#!/usr/bin/env bash
# What a GPU is measured and tested with. usage: tools/gpu.sh pack [FOLDER] | run; called by ./dev gpu.
#
# pack: the command, the library, the Python package, the scripts and the hardware probes in FOLDER, by
# default build/gpu_pack, for a machine with a driver but without compilers or registries; NVRTC comes
# from that machine's toolkit or torch. There: ./run.sh [torch].
# run: the same here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

pack() {
  local folder=${1:-build/gpu_pack}
  mkdir -p "$folder"/{bench,tests/device,python}
  cp build/release/sirdar build/release/tests/compare_with_emulator "$folder"
  cp bench/*.py "$folder/bench"
  cp tests/device/*.py "$folder/tests/device"
  cp -r python/sirdar "$folder/python"
  cp -L build/release/libsirdar.so "$folder/python/sirdar"
  find "$folder" -name __pycache__ -prune -exec rm -r {} +
  strip "$folder/sirdar" "$folder/compare_with_emulator" "$folder/python/sirdar/libsirdar.so"
  cat >"$folder/run.sh" <<'RUN'
#!/usr/bin/env bash
# Tests on this machine's GPU; with the word torch also those and the timings that need torch.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export PYTHONPATH=python
failed=0
./sirdar doctor
./sirdar selftest --backend cuda || failed=1
./compare_with_emulator || failed=1
if [ "${1:-}" = torch ]; then
  library=python/sirdar/libsirdar.so
  python3 tests/device/torch_on_gpu.py || failed=1
  python3 tests/device/models_on_gpu.py || failed=1
  python3 tests/device/limits_on_gpu.py || failed=1
  python3 tests/device/early_convert_on_gpu.py || failed=1
  python3 bench/compare_torch_cuda.py "$library" --rounds 1 || failed=1
  python3 bench/compare_torch_cuda_backward.py "$library" --rounds 1 || failed=1
  python3 bench/modifications_cuda.py "$library" --rounds 2 || failed=1
fi
exit "$failed"
RUN
  chmod +x "$folder/run.sh"
  du -sh "$folder"
}

case ${1:-} in
  pack) pack "${2:-}" ;;
  run) pack build/gpu_pack && shift && build/gpu_pack/run.sh "$@" ;;
  *) echo "gpu: '${1:-}' is neither pack nor run; ./dev gpu pack [FOLDER] makes a folder for a GPU machine, ./dev gpu run tests this one's GPU." >&2; exit 2 ;;
esac
