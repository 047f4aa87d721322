# SPDX-License-Identifier: Apache-2.0
# One precompiled header for every target that uses LibTorch: palimpsest_use_pch(TARGET SOURCE…).
#
# With Clang the header is made here and not by target_precompile_headers, whose file holds the path of
# its checkout: ccache could then share nothing between two checkouts. Its main file is one of LibTorch's,
# the others come by -include, so that equal flags give equal bytes in every folder.
set(pch_headers ATen/ATen.h torch/nn/module.h torch/csrc/autograd/custom_function.h)
set(pch_main torch/csrc/autograd/autograd.h)

if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_GENERATOR STREQUAL "Ninja")
  string(TOUPPER "${CMAKE_BUILD_TYPE}" pch_type)
  get_target_property(pch_flags palimpsest_flags INTERFACE_COMPILE_OPTIONS)
  get_target_property(pch_torch palimpsest_torch INTERFACE_COMPILE_OPTIONS)
  list(APPEND pch_flags ${pch_torch})
  list(TRANSFORM pch_flags REPLACE "^SHELL:" "")
  list(TRANSFORM pch_headers PREPEND "-include " OUTPUT_VARIABLE pch_includes)
  string(JOIN " " pch_flags ${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${pch_type}} ${pch_flags} -std=c++20 ${pch_includes})
  separate_arguments(pch_flags UNIX_COMMAND "${pch_flags}")
  add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/torch.pch DEPFILE torch.pch.d
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${CMAKE_CXX_COMPILER} ${pch_flags} -x c++-header ${torch_root}/include/${pch_main}
      -MD -MT torch.pch -MF torch.pch.d -o torch.pch
    WORKING_DIRECTORY ${CMAKE_BINARY_DIR} COMMENT "Precompiling LibTorch's headers" VERBATIM)
  add_custom_target(palimpsest_pch DEPENDS ${CMAKE_BINARY_DIR}/torch.pch)
else()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/pch.cpp CONTENT "// owner of the precompiled header\n")
  add_library(palimpsest_pch OBJECT ${CMAKE_BINARY_DIR}/pch.cpp)
  target_link_libraries(palimpsest_pch PRIVATE palimpsest_flags palimpsest_torch)
  list(TRANSFORM pch_headers REPLACE "(.+)" "<\\1>")
  target_precompile_headers(palimpsest_pch PRIVATE ${pch_headers} <${pch_main}>)
endif()

function(palimpsest_use_pch target)
  get_target_property(type palimpsest_pch TYPE)
  if(type STREQUAL "UTILITY")
    # The path is relative to the build folder, where Ninja runs every command.
    target_compile_options(${target} PRIVATE "SHELL:-Xclang -include-pch -Xclang torch.pch")
    set_property(SOURCE ${ARGN} APPEND PROPERTY OBJECT_DEPENDS ${CMAKE_BINARY_DIR}/torch.pch)
    add_dependencies(${target} palimpsest_pch)
  else()
    target_precompile_headers(${target} REUSE_FROM palimpsest_pch)
  endif()
endfunction()
