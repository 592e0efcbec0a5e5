# Warnings are errors in our own code, for g++ and clang alike.
add_library(sirdar_warnings INTERFACE)
target_compile_options(sirdar_warnings INTERFACE
  -Wall -Wextra -Werror -Wconversion -Wno-sign-conversion -Wshadow -Wempty-body
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> -Wno-missing-field-initializers)
