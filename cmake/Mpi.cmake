# SPDX-License-Identifier: Apache-2.0
# MPI, for training in several processes. AUTO takes it where it is found: Debian's libopenmpi-dev and openmpi-bin.
# Without it the program is whole but for `mpirun -n N palimpsest train`, which then names the package.
set(PALIMPSEST_MPI AUTO CACHE STRING "training in several processes: ON, OFF, or AUTO (where MPI is found)")
set_property(CACHE PALIMPSEST_MPI PROPERTY STRINGS AUTO ON OFF)

set(PALIMPSEST_HAS_MPI OFF)
if(NOT PALIMPSEST_MPI STREQUAL "OFF")
  set(MPI_CXX_SKIP_MPICXX ON)  # the C interface is all that is used
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(PALIMPSEST_HAS_MPI ON)
  elseif(PALIMPSEST_MPI STREQUAL "ON")
    message(FATAL_ERROR "PALIMPSEST_MPI is ON, but no MPI was found: apt-get install libopenmpi-dev openmpi-bin")
  endif()
endif()
message(STATUS "MPI: ${PALIMPSEST_HAS_MPI} (PALIMPSEST_MPI ${PALIMPSEST_MPI})")

# palimpsest_mpi(SOURCE TARGET): compiles this file of the target with MPI, and links it, where there is one.
function(palimpsest_mpi source target)
  if(NOT PALIMPSEST_HAS_MPI)
    return()
  endif()
  set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS PALIMPSEST_WITH_MPI OMPI_SKIP_MPICXX)
  set_property(SOURCE ${source} APPEND PROPERTY INCLUDE_DIRECTORIES ${MPI_CXX_INCLUDE_DIRS})
  set(libraries ${MPI_CXX_LIBRARIES})
  list(FILTER libraries EXCLUDE REGEX "mpi_cxx")
  target_link_libraries(${target} PRIVATE ${libraries})
endfunction()
