#!/bin/sh
# Causal attention over files, from a shell. SIRDAR is the command (default: the one on the PATH).
set -eu
sirdar=${SIRDAR:-sirdar}
data=$(dirname "$0")/minilm/activations.safetensors
out=$(mktemp -d)
trap 'rm -r "$out"' EXIT

"$sirdar" explain "fwd b1 sq256 sk256 hq12 hkv12 d32 fp32 causal"
"$sirdar" attend --q "$data:passage.q" --k "$data:passage.k" --v "$data:passage.v" \
  --causal --check -o "$out/out.npy" --lse "$out/lse.npy"
ls "$out"
