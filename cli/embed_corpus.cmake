# Packs the files of the conformance corpus into one .cc:
#   cmake -D OUTPUT=corpus.cc -P embed_corpus.cmake -- FILE...
set(rows "")
math(EXPR last "${CMAKE_ARGC} - 1")
set(is_file FALSE)
foreach(index RANGE ${last})
  set(argument "${CMAKE_ARGV${index}}")
  if(is_file)
    file(READ "${argument}" text)
    get_filename_component(name "${argument}" NAME)
    string(APPEND rows "    {\"${name}\", R\"corpus(${text})corpus\"},\n")
  elseif(argument STREQUAL "--")
    set(is_file TRUE)
  endif()
endforeach()
file(WRITE "${OUTPUT}" "#include \"corpus.h\"

namespace sirdar::cli {

std::span<const CorpusFile> corpus_files() {
  static constexpr CorpusFile kFiles[] = {
${rows}  };
  return kFiles;
}

}  // namespace sirdar::cli
")
