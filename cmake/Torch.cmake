# SPDX-License-Identifier: Apache-2.0
# LibTorch as the target palimpsest_torch. PALIMPSEST_TORCH names the folder that holds include/ and
# lib/ (the `torch` folder of a wheel, or an unpacked LibTorch), or the one a wheel was installed to.
# The package's own CMake file is not used: the CUDA wheel's demands a toolkit.
set(torch_default "$ENV{PALIMPSEST_TORCH}")
if(NOT torch_default)
  set(torch_default "$ENV{XDG_CACHE_HOME}")
  if(NOT torch_default)
    set(torch_default "$ENV{HOME}/.cache")
  endif()
  string(APPEND torch_default "/palimpsest/torch-2.13.0")  # where tools/bootstrap.sh puts it
endif()
set(PALIMPSEST_TORCH "${torch_default}" CACHE PATH "folder with LibTorch's include/ and lib/")
set(PALIMPSEST_CUDA AUTO CACHE STRING "link LibTorch's CUDA libraries: ON, OFF, or AUTO (where all that they need is found)")
set_property(CACHE PALIMPSEST_CUDA PROPERTY STRINGS AUTO ON OFF)

if(EXISTS "${PALIMPSEST_TORCH}/torch/lib/libtorch_cpu.so")
  get_filename_component(torch_root "${PALIMPSEST_TORCH}/torch" REALPATH)
else()
  get_filename_component(torch_root "${PALIMPSEST_TORCH}" REALPATH)
endif()
if(NOT EXISTS "${torch_root}/lib/libtorch_cpu.so" OR NOT EXISTS "${torch_root}/include/ATen/ATen.h")
  message(FATAL_ERROR "no LibTorch at '${PALIMPSEST_TORCH}': run tools/bootstrap.sh (make does), or set "
    "PALIMPSEST_TORCH to a folder with include/ and lib/libtorch_cpu.so")
endif()
set(PALIMPSEST_TORCH_LIB ${torch_root}/lib)

add_library(palimpsest_torch INTERFACE)
# -idirafter: the wheel ships fmt headers newer than the system's fmt and spdlog; the system's must win.
target_compile_options(palimpsest_torch INTERFACE
  "SHELL:-idirafter \"${torch_root}/include\""
  "SHELL:-idirafter \"${torch_root}/include/torch/csrc/api/include\"")
target_link_libraries(palimpsest_torch INTERFACE ${torch_root}/lib/libtorch_cpu.so ${torch_root}/lib/libc10.so)
target_link_options(palimpsest_torch INTERFACE "-Wl,-rpath,${torch_root}/lib")

if(EXISTS ${torch_root}/lib/libtorch_cuda.so)
  # The CUDA build: its libraries know where a wheel has NVIDIA's (nvidia/*/lib beside the torch folder).
  target_link_options(palimpsest_torch INTERFACE -Wl,--allow-shlib-undefined)
  set(cuda ${PALIMPSEST_CUDA})
  if(cuda STREQUAL "AUTO")
    execute_process(COMMAND ldd ${torch_root}/lib/libtorch_cuda.so OUTPUT_VARIABLE needs ERROR_QUIET RESULT_VARIABLE failed)
    if(failed OR needs MATCHES "not found")
      set(cuda OFF)
    else()
      set(cuda ON)
    endif()
  endif()
  if(cuda)
    # Nothing here refers to a symbol of these two, so the linker must be told to keep them.
    target_link_options(palimpsest_torch INTERFACE "SHELL:-Wl,--push-state,--no-as-needed \"${torch_root}/lib/libtorch_cuda.so\" \"${torch_root}/lib/libc10_cuda.so\" -Wl,--pop-state")
  endif()
  message(STATUS "LibTorch ${torch_root}: the CUDA build, CUDA ${cuda} (PALIMPSEST_CUDA ${PALIMPSEST_CUDA})")
endif()
