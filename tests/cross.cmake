# The CPU implementations on another machine, under an emulator. googletest is built from the source
# that libgtest-dev brings; tests that need more libraries stay at home.
include(GoogleTest)
add_subdirectory(/usr/src/googletest ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/unit/cpu_*_test.cc)
list(FILTER sources EXCLUDE REGEX cpu_expression) # whose fixtures need RapidCheck
add_executable(test_cpu ${sources})
target_include_directories(test_cpu PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(test_cpu PRIVATE sirdar_objects sirdar_warnings gtest_main)
# qemu-user cannot fork a process with threads.
add_test(NAME cpu COMMAND test_cpu --gtest_filter=-*ForkedChild)
