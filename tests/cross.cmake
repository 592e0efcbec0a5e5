# The CPU implementations on another machine, under an emulator. googletest is built from the source
# that libgtest-dev brings; tests that need more libraries stay at home.
include(GoogleTest)
add_subdirectory(/usr/src/googletest ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/unit/cpu_*_test.cc)
add_executable(test_cpu ${sources})
target_link_libraries(test_cpu PRIVATE sirdar_objects sirdar_warnings gtest_main)
add_test(NAME cpu COMMAND test_cpu)
