# cmake -D SOURCE_DIR=<root> [-D STAMP=<file>] -P check_include_direction.cmake
#   Fails, naming file and include, where a layer includes what stands right of it:
#     kernels/common <- kernels/<kernel> <- reference <- harness <- benches
#   Inside the harness: core <- models, record <- text, decoder <- chat <- cli. kernels/common and reference/ include
#   nothing of CUDA. The build runs this before it compiles.
cmake_minimum_required(VERSION 3.25)
cmake_path(ABSOLUTE_PATH SOURCE_DIR)

# Sets <out> to the regex of project files that <file> may include.
function(allowed_includes out file)
  if(file MATCHES "^kernels/common/")
    set(allowed "kernels/common")
  elseif(file MATCHES "^kernels/device/")
    set(allowed "kernels/(common|device)")
  elseif(file MATCHES "^kernels/")
    set(allowed "kernels")
  elseif(file MATCHES "^reference/")
    set(allowed "kernels|reference")
  elseif(file MATCHES "^harness/core/")
    set(allowed "kernels/(common|device)|harness/core")
  elseif(file MATCHES "^harness/(models|record)/")
    set(allowed "kernels/common|harness/(core|${CMAKE_MATCH_1})")
  elseif(file MATCHES "^harness/text/")
    set(allowed "kernels/common|harness/(core|models|text)")
  elseif(file MATCHES "^harness/decoder/")
    set(allowed "kernels|reference|harness/(core|models|decoder)")
  elseif(file MATCHES "^harness/chat/")
    set(allowed "kernels|harness/(core|models|text|decoder|chat)")
  elseif(file MATCHES "^harness/cli/")
    set(allowed "kernels|reference|harness/(core|models|record|text|decoder|chat|cli)")
  elseif(file MATCHES "^harness/")
    set(allowed "kernels|reference|harness")
  elseif(file MATCHES "^benches/tests/")
    set(allowed "kernels|reference|harness|benches")
  else()
    set(allowed "kernels|reference|harness/(core|models|record|decoder)|benches")
  endif()
  set(${out} "^\"(${allowed})/" PARENT_SCOPE)
endfunction()

file(GLOB_RECURSE files RELATIVE "${SOURCE_DIR}"
  "${SOURCE_DIR}/kernels/*" "${SOURCE_DIR}/reference/*" "${SOURCE_DIR}/harness/*"
  "${SOURCE_DIR}/benches/*")
list(FILTER files INCLUDE REGEX "\\.(h|cc|cuh|cu)$")
list(SORT files)

set(violations "")
foreach(file IN LISTS files)
  allowed_includes(allowed "${file}")
  file(STRINGS "${SOURCE_DIR}/${file}" lines REGEX "^[ \t]*#[ \t]*include[ \t]")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^[ \t]*#[ \t]*include[ \t]*" "" included "${line}")
    if(included MATCHES "^\"(kernels|reference|harness|benches)/" AND NOT included MATCHES "${allowed}")
      string(APPEND violations "\n  ${file} includes ${included}")
    endif()
    if(file MATCHES "^(kernels/common|reference)/" AND
        included MATCHES "^[<\"](cuda|cub/|cublas|thrust/)|\\.cuh")
      string(APPEND violations "\n  ${file} is host only, but includes ${included}")
    endif()
  endforeach()
endforeach()
if(violations)
  message(FATAL_ERROR "the include direction is kernels/common <- kernels/<kernel> <- reference <- "
    "harness <- benches; against it:${violations}")
endif()
if(DEFINED STAMP)
  file(TOUCH "${STAMP}")
endif()
