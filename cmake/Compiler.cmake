# SPDX-License-Identifier: Apache-2.0
# Flags every target of the project is compiled with. One set per preset, because they all share one
# precompiled header. No -march here: kernels per instruction set live in files of their own.
add_library(palimpsest_flags INTERFACE)
target_compile_options(palimpsest_flags INTERFACE -fPIC -Wall -Wextra -Wno-unused-parameter)
if(PALIMPSEST_WERROR)
  target_compile_options(palimpsest_flags INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # ccache may only reuse a precompiled header whose bytes do not depend on the clock.
  target_compile_options(palimpsest_flags INTERFACE "SHELL:-Xclang -fno-pch-timestamp")
  find_program(PALIMPSEST_LLD NAMES ld.lld-19 ld.lld)
  if(PALIMPSEST_LLD)
    target_link_options(palimpsest_flags INTERFACE -fuse-ld=lld)
  endif()
else()
  # g++ 12 warns of overflows inside std::string::insert and operator+ that cannot happen.
  target_compile_options(palimpsest_flags INTERFACE -fpch-preprocess -Wno-stringop-overflow -Wno-restrict)
endif()
if(PALIMPSEST_SANITIZE)
  target_compile_options(palimpsest_flags INTERFACE -fsanitize=${PALIMPSEST_SANITIZE}
    -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(palimpsest_flags INTERFACE -fsanitize=${PALIMPSEST_SANITIZE})
endif()

find_program(PALIMPSEST_CCACHE ccache)
if(PALIMPSEST_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${PALIMPSEST_CCACHE})
endif()
