# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What tools/demo, tools/test and tools/gpu_session share: installing what is missing, choosing a preset, building.
# To be sourced by bash scripts that stand in tools/.

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

BUILD_PACKAGES=(cmake ninja-build g++ pkg-config libhwy-dev libcli11-dev nlohmann-json3-dev)
TEST_PACKAGES=(libgtest-dev libgmock-dev libboost-context-dev python3 python3-numpy)

say() { printf '== %s\n' "$*"; }
fail() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# install_missing PACKAGE...: installs those Debian packages that are not there yet, and says which.
install_missing() {
  if ! command -v apt-get dpkg-query >/dev/null; then
    say "No apt-get here: expecting what these Debian packages bring: $*"
    return
  fi
  local missing=() package
  for package in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0

  local as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail "needs root or sudo to run: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "Installing with apt-get: ${missing[*]}"
  "${as_root[@]}" apt-get update -q
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
}

# find_nvcc: prints the path of an nvcc of CUDA 12.8 or newer; fails if there is none.
find_nvcc() {
  local nvcc release
  for nvcc in "$(command -v nvcc || true)" "${CUDA_HOME:-}/bin/nvcc" /usr/local/cuda/bin/nvcc; do
    [[ -x $nvcc ]] || continue
    release=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
    if [[ $(printf '%s\n' 12.8 "$release" | sort -V | head -n 1) == 12.8 ]]; then
      printf '%s\n' "$nvcc"
      return
    fi
  done
  return 1
}

# provide_cuobjdump: sees to it that tools/sass_overlap finds one. Small CUDA installations lack it; the package triton
# brings it.
provide_cuobjdump() {
  [[ -x $(command -v cuobjdump || echo "${CUDA_HOME:-/usr/local/cuda}/bin/cuobjdump") ]] && return
  compgen -G '.venv/lib/python*/site-packages/triton/backends/nvidia/bin/cuobjdump' >/dev/null && return
  install_missing python3-venv
  say "Installing the package triton into .venv, for its cuobjdump"
  if ! { python3 -m venv .venv && .venv/bin/pip install -q triton; }; then
    say "WITHOUT cuobjdump: what the kernels overlap will not be checked"
  fi
}

# configure [PRESET] [CMAKE-ARGUMENT...]: configures; sets $preset and $build. PRESET "" or "auto": hopper if there is
# a CUDA toolkit, else cpu.
configure() {
  preset=${1:-auto}
  shift || true
  local nvcc="" arguments=("$@")
  [[ $preset == cpu ]] || nvcc=$(find_nvcc || true)
  case $preset in
    auto) preset=$([[ $nvcc ]] && echo hopper || echo cpu) ;;
    hopper) [[ $nvcc ]] || fail "the preset hopper needs nvcc of the CUDA toolkit 12.8 or newer (PATH, CUDA_HOME, /usr/local/cuda)" ;;
    cpu) ;;
    *) fail "there is no preset '$preset': cpu, hopper or auto" ;;
  esac
  if [[ $nvcc ]]; then
    say "Building everything, with the Hopper kernels ($nvcc)"
    arguments+=("-DTANDEM_NVCC=$nvcc")
  else
    say "Building for the CPU: the Hopper kernels are LEFT OUT (they need nvcc of the CUDA toolkit 12.8 or newer)"
  fi
  build=build/$preset
  cmake --preset "$preset" "${arguments[@]}"
}

# build_targets [TARGET...]: builds with progress; all targets by default.
build_targets() {
  local targets=()
  (($#)) && targets=(--target "$@")
  NINJA_STATUS='[%f/%t, %es] ' cmake --build "$build" "${targets[@]}"
}

# run_demo TANDEM OUTPUT [ATTEND-OPTION...]: the main job on the real input.
run_demo() {
  local tandem=$1 output=$2
  shift 2
  say "Attention over every layer of all-MiniLM-L6-v2 on the licence text"
  "$tandem" attend examples/data/minilm.safetensors -o "$output" --q 'layers.{}.q' --k 'layers.{}.k' \
    --v 'layers.{}.v' --expect 'layers.{}.o' --check "$@"
}
