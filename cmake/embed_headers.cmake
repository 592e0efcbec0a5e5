# Packs headers into one .cc, as the table that jit/headers.h declares:
#   cmake -D OUTPUT=headers.cc -P embed_headers.cmake -- NAME=FILE...
set(rows "")
math(EXPR last "${CMAKE_ARGC} - 1")
set(is_file FALSE)
foreach(index RANGE ${last})
  set(argument "${CMAKE_ARGV${index}}")
  if(is_file)
    string(REGEX MATCH "^([^=]+)=(.+)$" matched "${argument}")
    set(name "${CMAKE_MATCH_1}")
    file(READ "${CMAKE_MATCH_2}" text)
    string(APPEND rows "    {\"${name}\", R\"header(${text})header\"sv},\n")
  elseif(argument STREQUAL "--")
    set(is_file TRUE)
  endif()
endforeach()
file(WRITE "${OUTPUT}" "#include \"jit/headers.h\"

namespace sirdar::jit {

std::span<const EmbeddedHeader> embedded_headers() {
  // Literals that know their length: clang would count it byte by byte, and give up.
  using namespace std::string_view_literals;
  static constexpr EmbeddedHeader kHeaders[] = {
${rows}  };
  return kHeaders;
}

}  // namespace sirdar::jit
")
