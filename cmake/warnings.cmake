# One warning set for g++ and clang. Warnings are errors in development (SIRDAR_WERROR, on in the
# builds of ./dev ci), not for those who build a release with a compiler that we have not seen.
option(SIRDAR_WERROR "Treat warnings as errors" OFF)
add_library(sirdar_warnings INTERFACE)
target_compile_options(sirdar_warnings INTERFACE
  -Wall -Wextra -Wconversion -Wno-sign-conversion -Wshadow -Wempty-body
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> -Wno-missing-field-initializers
  $<$<BOOL:${SIRDAR_WERROR}>:-Werror>)
