# Defines tokline_pcre2 and tokline_utf8proc, the libraries that harness/text uses. A static
# archive is preferred if one is installed, so that the programs run on machines without the
# libraries.
function(tokline_find_text_library target package header)
  cmake_parse_arguments(PARSE_ARGV 3 arg "" "" "NAMES")
  find_library(${target}_LIBRARY NAMES ${arg_NAMES})
  find_path(${target}_INCLUDE_DIR NAMES ${header})
  if(NOT ${target}_LIBRARY OR NOT ${target}_INCLUDE_DIR)
    message(FATAL_ERROR "${header} or its library was not found: install ${package}")
  endif()
  mark_as_advanced(${target}_LIBRARY ${target}_INCLUDE_DIR)
  add_library(${target} UNKNOWN IMPORTED)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION "${${target}_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${${target}_INCLUDE_DIR}")
endfunction()

tokline_find_text_library(tokline_pcre2 libpcre2-dev pcre2.h NAMES libpcre2-8.a pcre2-8)
tokline_find_text_library(tokline_utf8proc libutf8proc-dev utf8proc.h NAMES libutf8proc.a utf8proc)
