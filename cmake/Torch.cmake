# SPDX-License-Identifier: Apache-2.0
# LibTorch as imported targets. PALIMPSEST_TORCH names the folder that holds include/ and lib/ (the
# `torch` folder of a wheel, or an unpacked LibTorch). The package's own CMake file is not used: the
# CUDA wheel's demands a toolkit.
set(PALIMPSEST_TORCH "$ENV{PALIMPSEST_TORCH}" CACHE PATH "folder with LibTorch's include/ and lib/")
if(EXISTS "${PALIMPSEST_TORCH}/torch/lib/libtorch_cpu.so")
  set(torch_root "${PALIMPSEST_TORCH}/torch")
else()
  set(torch_root "${PALIMPSEST_TORCH}")
endif()
if(NOT EXISTS "${torch_root}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "no LibTorch at '${PALIMPSEST_TORCH}': run tools/bootstrap.sh (make does), or set "
    "PALIMPSEST_TORCH to a folder with include/ and lib/libtorch_cpu.so")
endif()
set(PALIMPSEST_TORCH_LIB ${torch_root}/lib)

add_library(palimpsest_torch INTERFACE)
# -idirafter: the wheel ships fmt headers newer than the system's fmt and spdlog; the system's must win.
target_compile_options(palimpsest_torch INTERFACE
  "SHELL:-idirafter ${torch_root}/include"
  "SHELL:-idirafter ${torch_root}/include/torch/csrc/api/include")
target_link_libraries(palimpsest_torch INTERFACE
  ${torch_root}/lib/libtorch_cpu.so ${torch_root}/lib/libc10.so)
if(EXISTS ${torch_root}/lib/libtorch_cuda.so AND EXISTS ${torch_root}/lib/libc10_cuda.so)
  # Nothing here refers to a symbol of these two, so the linker must be told to keep them.
  target_link_options(palimpsest_torch INTERFACE "SHELL:-Wl,--no-as-needed"
    ${torch_root}/lib/libtorch_cuda.so ${torch_root}/lib/libc10_cuda.so "SHELL:-Wl,--as-needed"
    -Wl,--allow-shlib-undefined)
endif()
target_link_options(palimpsest_torch INTERFACE -Wl,-rpath,${torch_root}/lib)
