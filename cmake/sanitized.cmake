# Tests under sanitizers: half of their time goes into compiling, so what decides and describes is not
# optimised, and what the tests include is read once. The tests themselves are: of an inline function
# the linker takes the first copy it meets, theirs, also for the library's own loops.
set(SIRDAR_TESTS_ARE_SANITIZED OFF)
if(SIRDAR_BUILD_TESTS AND CMAKE_CXX_FLAGS_DEBUG MATCHES "sanitize")
  set(SIRDAR_TESTS_ARE_SANITIZED ON)
endif()

# Of the sources of the library: those that decide and describe.
function(sirdar_compile_quickly)
  if(NOT SIRDAR_TESTS_ARE_SANITIZED)
    return()
  endif()
  set(cold ${ARGN})
  list(FILTER cold INCLUDE REGEX "/src/(api|cuda|jit|plan)/")
  set_source_files_properties(${cold} PROPERTIES COMPILE_OPTIONS -O0)
  if(CMAKE_CXX_FLAGS_DEBUG MATCHES "undefined")
    # Half of the time of the kernels goes into these checks of pointers. isa_scalar.cc, which is the
    # same text, keeps them.
    set(kernels ${ARGN})
    list(FILTER kernels INCLUDE REGEX "/src/cpu/isa_avx")
    set_source_files_properties(${kernels} PROPERTIES
      COMPILE_OPTIONS -fno-sanitize=null,object-size,pointer-overflow)
  endif()
endfunction()

# Of a program of tests. ccache would have to be told to trust a precompiled header.
function(sirdar_compile_tests_quickly target)
  if(NOT SIRDAR_TESTS_ARE_SANITIZED)
    return()
  endif()
  if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    target_precompile_headers(${target} PRIVATE <gtest/gtest.h> <sirdar/sirdar.hpp>)
  endif()
endfunction()
