#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a machine ready to build and installs only what is missing: Debian packages with apt-get, LibTorch
# from the torch wheel into the user's cache folder, where every checkout finds it. Quick where all is there.
#
#   eval "$(tools/bootstrap.sh)"     talk goes to stderr, the settings of the build to stdout
#
# PALIMPSEST_TORCH=DIR     use this LibTorch (a wheel's torch folder, or an unpacked LibTorch); install none
# PALIMPSEST_INSTALL=no    install nothing; say what is missing
# XDG_CACHE_HOME=DIR       the cache folder, ~/.cache where unset
# CXX, CC                  another compiler than clang 19
# Exit codes: 0 ready, 1 an installation failed, 2 something for the user to do (the message says what).
set -euo pipefail

readonly torch_version=2.13.0
readonly cuda_wheels=(nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
# Without these nothing is built.
readonly needed_packages=(ninja-build cmake make git python3 python3-pip libicu-dev nlohmann-json3-dev libtomlplusplus-dev
  libcli11-dev libspdlog-dev libfmt-dev libgtest-dev libgmock-dev libbenchmark-dev zlib1g-dev libedit-dev)
# Left out, with a note, where the system does not know them: the compiler and its tools, speed, the demo's texts, plots.
readonly wanted_packages=(clang-19 clang-tidy-19 clang-format-19 libclang-rt-19-dev lld-19 ccache bible-kjv fortunes gnuplot-nox)
# Never asked for: installed along with others where that is done anyway. Training in several processes needs them.
readonly optional_packages=(libopenmpi-dev openmpi-bin)

say() { printf '%s\n' "$*" >&2; }
# fail CODE WHAT [AT] [FIX]
fail() {
  say "error: $2"
  [ -z "${3-}" ] || say "  at:  $3"
  [ -z "${4-}" ] || say "  fix: $4"
  exit "$1"
}

# ---- system packages --------------------------------------------------------------------------------------

# The given packages that are not installed.
missing() {
  local name state
  declare -A installed=()
  while read -r name state; do
    [ "$state" != installed ] || installed[$name]=yes
  done < <(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "$@" 2> /dev/null || true)
  for name in "$@"; do [ "${installed[$name]-}" = yes ] || echo "$name"; done
}

# The given packages that apt can install.
known() {
  local name
  for name in "$@"; do
    [ -z "$(apt-cache policy "$name" 2> /dev/null | sed -n 's/^  Candidate: (none)//;s/^  Candidate: //p')" ] || echo "$name"
  done
}

lists_are_old() { [ -z "$(find /var/lib/apt/lists -maxdepth 1 -type f -name '*Packages*' -mtime -7 -print -quit 2> /dev/null)" ]; }

install_packages() {
  local -a absent to_install unknown as_root=()
  if ! command -v dpkg-query > /dev/null; then
    local program
    for program in cmake ninja python3 git; do
      command -v $program > /dev/null || fail 2 "$program is not installed, and this system has no Debian packages to install it from" "" \
        "install what these Debian packages hold: ${needed_packages[*]}, and clang 19 or g++ 12"
    done
    say "note: no Debian packages here: what is missing must be installed by hand; CMake names it"
    return
  fi
  mapfile -t absent < <(missing "${needed_packages[@]}" "${wanted_packages[@]}")
  [ ${#absent[@]} -gt 0 ] || return 0

  local command="apt-get update && apt-get install -y --no-install-recommends ${absent[*]}"
  if [ "${PALIMPSEST_INSTALL-yes}" = no ]; then
    fail 2 "these packages are missing: ${absent[*]}" "PALIMPSEST_INSTALL=no" "as root: $command"
  fi
  command -v apt-get > /dev/null || fail 2 "these packages are missing, and there is no apt-get here: ${absent[*]}" "" \
    "install them, then run the same command again"
  if [ "$(id -u)" != 0 ]; then
    sudo -n true 2> /dev/null || fail 2 "these packages are missing, and installing them needs root: ${absent[*]}" "" \
      "sudo sh -c '$command'"
    as_root=(sudo -n)
  fi
  local -a apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)

  mapfile -t to_install < <(known "${absent[@]}")
  if lists_are_old || [ ${#to_install[@]} -lt ${#absent[@]} ]; then
    say "bootstrap: apt-get update"
    "${apt[@]}" update >&2 || say "note: apt-get update failed: going on with the package lists at hand"
    mapfile -t to_install < <(known "${absent[@]}")
  fi
  mapfile -t unknown < <(comm -23 <(printf '%s\n' "${absent[@]}" | sort) <(printf '%s\n' "${to_install[@]}" | sort))
  if [[ " ${unknown[*]} " == *" clang-19 "* ]]; then
    [ -z "$(missing g++)" ] || to_install+=(g++)
    say "note: this system has no clang-19: building with g++ (12 or newer), which compiles three times slower"
  fi
  local name
  for name in "${unknown[@]}"; do
    [[ " ${wanted_packages[*]} " == *" $name "* ]] || fail 2 "apt knows no package $name" "" \
      "install what it holds by hand; Debian 12 has it"
  done
  [ ${#unknown[@]} -eq 0 ] || say "note: left out, for apt does not know them: ${unknown[*]}"
  [ ${#to_install[@]} -gt 0 ] && [ -n "${to_install[0]}" ] || return 0
  mapfile -t -O "${#to_install[@]}" to_install < <(missing "${optional_packages[@]}" | while read -r name; do known "$name"; done)

  say "bootstrap: installing ${to_install[*]}"
  "${apt[@]}" install -y --no-install-recommends "${to_install[@]}" >&2 ||
    fail 1 "apt-get could not install the packages (its words are above)" "" "mend that, or as root: $command"
}

# ---- the compiler -----------------------------------------------------------------------------------------

choose_compiler() {
  if [ -n "${CXX-}" ]; then
    command -v "${CXX%% *}" > /dev/null || fail 2 "there is no compiler $CXX" "CXX" "unset CXX, or name one that is installed"
    cc=${CC-} cxx=$CXX
  elif command -v clang++-19 > /dev/null; then
    cc=clang-19 cxx=clang++-19
  elif command -v g++ > /dev/null; then
    cc=gcc cxx=g++
    local version
    version=$(g++ -dumpversion)
    [ "${version%%.*}" -ge 12 ] || fail 2 "g++ $version is too old" "" "install clang-19, or g++ 12 or newer; or name a compiler with CXX"
    say "note: no clang++-19: building with g++ $version"
  else
    fail 2 "no C++ compiler was found" "" "install clang-19, or g++ 12 or newer; or name one with CXX"
  fi
}

# ---- LibTorch ---------------------------------------------------------------------------------------------

# True where the folder holds a whole LibTorch wheel: every library has the size that the wheel's list says.
wheel_is_whole() {
  local folder=$1 list name hash size
  list=$(compgen -G "$folder/torch-*.dist-info/RECORD") || return 1
  [ -f "$list" ] && [ -f "$folder/torch/include/ATen/ATen.h" ] && grep -q '^torch/lib/libtorch_cpu\.so,' "$list" || return 1
  while IFS=, read -r name hash size; do
    [ "$(stat -c %s "$folder/$name" 2> /dev/null)" = "$size" ] || return 1
  done < <(grep -E '^torch/lib/[^/,]*\.so[^/,]*,' "$list" | tr -d '\r')
}

find_python() {
  for python in python3 /usr/bin/python3; do
    "$python" -m pip --version > /dev/null 2>&1 && return
  done
  fail 2 "no python3 with pip was found" "" "install python3-pip, or name an installed LibTorch with PALIMPSEST_TORCH"
}

pip_install() {
  # Downloads and unpacks beside the target, not in /tmp, which may be small and elsewhere.
  TMPDIR=$part.tmp PIP_ROOT_USER_ACTION=ignore "$python" -m pip install --no-deps --no-compile --no-cache-dir --disable-pip-version-check \
    --target "$part" "$@" >&2 || fail 1 "pip could not install $* (its words are above)" "$target" \
    "mend that and run the same command again, or name an installed LibTorch with PALIMPSEST_TORCH"
}

install_torch() {
  local free part=$target.part
  mkdir -p "${target%/*}" 2> /dev/null || fail 2 "cannot make the folder ${target%/*}" "" \
    "set XDG_CACHE_HOME to a folder that can be written, or PALIMPSEST_TORCH to an installed LibTorch"
  exec 9> "${target%/*}/.lock"
  if ! flock -n 9; then
    say "bootstrap: another checkout is installing LibTorch: waiting for it"
    flock 9
  fi
  [ ! -e "$target/.complete" ] || ! wheel_is_whole "$target" || return 0

  [ ! -e "$target" ] || say "bootstrap: the LibTorch in $target is not whole (a download cut off?): installing it anew"
  free=$(df -Pk "${target%/*}" | awk 'NR == 2 { print int($4 / 1024) }')
  [ "$free" -ge 1500 ] || fail 2 "only $free MB are free, and LibTorch takes 1.5 GB while it is installed" "${target%/*}" \
    "free some, or set XDG_CACHE_HOME to a folder elsewhere"
  find_python
  say "bootstrap: installing LibTorch $torch_version (the torch wheel, a download of 0.2 to 0.6 GB) into $target"
  rm -rf "$part" "$part.tmp"
  trap 'rm -rf "$part" "$part.tmp"' EXIT
  mkdir -p "$part.tmp"
  pip_install "torch==$torch_version"
  wheel_is_whole "$part" || fail 1 "the torch wheel that pip installed is not whole" "$part" "run the same command again"
  if [ -e "$part/torch/lib/libtorch_cuda.so" ]; then
    say "bootstrap: this is the CUDA build of LibTorch: adding the two libraries that it cannot start without"
    pip_install "${cuda_wheels[@]}"
  fi
  touch "$part/.complete"
  rm -rf "$target"
  mv -T "$part" "$target"
  rm -rf "$part.tmp"
  trap - EXIT
  say "bootstrap: LibTorch is ready: $target"
}

find_torch() {
  if [ -n "${PALIMPSEST_TORCH-}" ]; then
    local root=$PALIMPSEST_TORCH file
    [ ! -e "$root/torch/lib" ] || root=$root/torch
    for file in lib/libtorch_cpu.so lib/libc10.so include/ATen/ATen.h; do
      [ -e "$root/$file" ] || fail 2 "there is no LibTorch: $file is missing" "PALIMPSEST_TORCH=$PALIMPSEST_TORCH" \
        "name a folder that holds include/ and lib/ (an unpacked LibTorch, or the torch folder of an installed wheel), or unset it and let this script install one"
    done
    local version
    version=$(sed -nE 's/^#define TORCH_VERSION_(MAJOR|MINOR) ([0-9]+).*/\2/p' "$root/include/torch/headeronly/version.h" 2> /dev/null | paste -sd.)
    [ "$version" = "${torch_version%.*}" ] || say "note: PALIMPSEST_TORCH holds LibTorch ${version:-of an unknown version}; tried is $torch_version"
    target=$(cd "$PALIMPSEST_TORCH" && pwd)
    return
  fi
  [ -n "${XDG_CACHE_HOME-}${HOME-}" ] || fail 2 "neither HOME nor XDG_CACHE_HOME is set" "" "set one, or PALIMPSEST_TORCH"
  target=${XDG_CACHE_HOME:-$HOME/.cache}/palimpsest/torch-$torch_version
  if [ ! -e "$target/.complete" ] || ! wheel_is_whole "$target"; then
    [ "${PALIMPSEST_INSTALL-yes}" != no ] || fail 2 "LibTorch $torch_version is not installed" "$target" \
      "unset PALIMPSEST_INSTALL, or name an installed LibTorch with PALIMPSEST_TORCH"
    install_torch
  fi
}

install_packages
choose_compiler
find_torch
printf 'export PALIMPSEST_TORCH=%q CXX=%q' "$target" "$cxx"
[ -z "$cc" ] || printf ' CC=%q' "$cc"
echo
