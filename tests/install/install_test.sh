#!/bin/sh
# Installs the build into a fresh prefix and builds programs outside the project against it, by
# find_package, by pkg-config and by add_subdirectory.
# usage: install_test.sh SOURCE_DIR BUILD_DIR WORK_DIR C_COMPILER CXX_COMPILER LIBDIR
set -eu
source_dir=$1 build_dir=$2 work_dir=$3 cc=$4 cxx=$5 libdir=$6
consumer=$source_dir/tests/install/consumer
rm -rf "$work_dir"
mkdir -p "$work_dir"

cmake --install "$build_dir" --prefix "$work_dir/prefix" >"$work_dir/install.log"

build_with_cmake() {  # NAME CMAKE_ARGUMENTS...
  name=$1
  shift
  cmake -G Ninja -S "$consumer" -B "$work_dir/$name" -DCMAKE_C_COMPILER="$cc" \
    -DCMAKE_CXX_COMPILER="$cxx" "$@" >"$work_dir/$name.log"
  cmake --build "$work_dir/$name" -j2 >>"$work_dir/$name.log" || {
    cat "$work_dir/$name.log"
    exit 1
  }
  "$work_dir/$name/consumer_c"
  "$work_dir/$name/consumer_cpp"
}
build_with_cmake find_package -DCMAKE_PREFIX_PATH="$work_dir/prefix"

export PKG_CONFIG_PATH="$work_dir/prefix/$libdir/pkgconfig"
flags=$(pkg-config --cflags --libs sirdar)
# shellcheck disable=SC2086
"$cc" -std=c99 "$consumer/consumer.c" $flags -o "$work_dir/pkg_c"
# shellcheck disable=SC2086
"$cxx" -std=c++20 "$consumer/consumer.cc" $flags -o "$work_dir/pkg_cpp"
LD_LIBRARY_PATH="$work_dir/prefix/$libdir" "$work_dir/pkg_c"
LD_LIBRARY_PATH="$work_dir/prefix/$libdir" "$work_dir/pkg_cpp"
# As docs/start.md says: with an rpath nothing has to be set to run.
# shellcheck disable=SC2086
"$cxx" -std=c++20 "$consumer/consumer.cc" $flags \
  -Wl,-rpath,"$(pkg-config --variable=libdir sirdar)" -o "$work_dir/pkg_rpath"
env -u LD_LIBRARY_PATH "$work_dir/pkg_rpath"

for adapter in openmp tbb; do
  test -f "$work_dir/prefix/include/sirdar/adapters/$adapter.hpp"
done
if grep -rl 'fmt/' "$work_dir/prefix/include"; then
  echo "installed headers include fmt" >&2
  exit 1
fi

build_with_cmake add_subdirectory -DSIRDAR_SOURCE_DIR="$source_dir" -DCMAKE_BUILD_TYPE=Debug
