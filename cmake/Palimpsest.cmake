# SPDX-License-Identifier: Apache-2.0
# palimpsest_library(ROOM [NO_TORCH] DEPENDS … LINKS …): every .cpp of the folder, as palimpsest_ROOM.
# DEPENDS names rooms, LINKS other libraries; both are public.
function(palimpsest_library room)
  cmake_parse_arguments(ARG "NO_TORCH" "" "DEPENDS;LINKS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${room}/*.cpp
    ${CMAKE_CURRENT_SOURCE_DIR}/${room}/mechanisms/*.cpp)
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
    palimpsest_use_pch(palimpsest_${room} ${sources})
  endif()
endfunction()

# palimpsest_isa_kernels(ROOM): the .cpp files of ROOM/isa, each compiled for the instruction set that its name ends
# with, without the precompiled header (its flags differ), linked into palimpsest_ROOM.
function(palimpsest_isa_kernels room)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${room}/isa/*.cpp)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(FILTER sources EXCLUDE REGEX "_avx")
  endif()
  add_library(palimpsest_${room}_isa OBJECT ${sources})
  target_include_directories(palimpsest_${room}_isa PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(palimpsest_${room}_isa PRIVATE palimpsest_flags)
  foreach(source ${sources})
    # Speed is what these files are for: -O3 in every build.
    set(flags -O3)
    if(source MATCHES "_avx2.cpp$")
      list(APPEND flags -mavx2 -mfma)
    elseif(source MATCHES "_avx512.cpp$")
      list(APPEND flags -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma)
    endif()
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${flags}")
  endforeach()
  target_sources(palimpsest_${room} PRIVATE $<TARGET_OBJECTS:palimpsest_${room}_isa>)
endfunction()

# palimpsest_test(FOLDER LINKS … LABELS … [NO_TORCH]): every *_test.cpp of tests/FOLDER in one binary, with what they
# share in *_cases.cpp;
# each TEST is one ctest with the given labels.
function(palimpsest_test folder)
  cmake_parse_arguments(ARG "NO_TORCH" "TIMEOUT" "LINKS;LABELS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*_test.cpp
       ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*_cases.cpp)
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
    palimpsest_use_pch(${target} ${sources})
  endif()
  if(PALIMPSEST_SANITIZE)
    # A sanitized program with LibTorch takes seconds to start: one ctest for all of the folder.
    add_test(NAME ${folder} COMMAND ${target})
    set_tests_properties(${folder} PROPERTIES LABELS "${folder};${ARG_LABELS}" TIMEOUT 3600)
    return()
  endif()
  gtest_discover_tests(${target} TEST_PREFIX ${folder}. DISCOVERY_TIMEOUT 120
    PROPERTIES LABELS "${folder};${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "OMP_NUM_THREADS=1")
endfunction()
