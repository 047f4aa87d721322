# SPDX-License-Identifier: Apache-2.0
# One precompiled header for every target that uses LibTorch.
file(WRITE ${CMAKE_BINARY_DIR}/pch.cpp "// owner of the precompiled header\n")
add_library(palimpsest_pch OBJECT ${CMAKE_BINARY_DIR}/pch.cpp)
target_link_libraries(palimpsest_pch PRIVATE palimpsest_flags palimpsest_torch)
target_precompile_headers(palimpsest_pch PRIVATE <ATen/ATen.h> <torch/nn/module.h>
  <torch/csrc/autograd/custom_function.h> <torch/csrc/autograd/autograd.h>)

# palimpsest_library(ROOM [NO_TORCH] DEPENDS … LINKS …): every .cpp of the folder, as palimpsest_ROOM.
# DEPENDS names rooms, LINKS other libraries; both are public.
function(palimpsest_library room)
  cmake_parse_arguments(ARG "NO_TORCH" "" "DEPENDS;LINKS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${room}/*.cpp)
  if(NOT sources)
    add_library(palimpsest_${room} INTERFACE)
    foreach(other ${ARG_DEPENDS})
      target_link_libraries(palimpsest_${room} INTERFACE palimpsest_${other})
    endforeach()
    return()
  endif()
  add_library(palimpsest_${room} STATIC ${sources})
  target_include_directories(palimpsest_${room} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(palimpsest_${room} PRIVATE palimpsest_flags PUBLIC ${ARG_LINKS})
  foreach(other ${ARG_DEPENDS})
    target_link_libraries(palimpsest_${room} PUBLIC palimpsest_${other})
  endforeach()
  if(NOT ARG_NO_TORCH)
    target_link_libraries(palimpsest_${room} PUBLIC palimpsest_torch)
    target_precompile_headers(palimpsest_${room} REUSE_FROM palimpsest_pch)
  endif()
endfunction()

# palimpsest_test(FOLDER LINKS … LABELS … [NO_TORCH]): every *_test.cpp of tests/FOLDER in one binary;
# each TEST is one ctest with the given labels.
function(palimpsest_test folder)
  cmake_parse_arguments(ARG "NO_TORCH" "TIMEOUT" "LINKS;LABELS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*_test.cpp)
  if(NOT sources)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set(target ${folder}_test)
  add_executable(${target} ${sources})
  target_link_libraries(${target} PRIVATE palimpsest_flags ${ARG_LINKS} palimpsest_test_support
    GTest::gtest GTest::gmock GTest::gtest_main)
  if(NOT ARG_NO_TORCH)
    target_precompile_headers(${target} REUSE_FROM palimpsest_pch)
  endif()
  gtest_discover_tests(${target} TEST_PREFIX ${folder}. DISCOVERY_TIMEOUT 120
    PROPERTIES LABELS "${folder};${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()
