# cmake -D SOURCE_DIR=<root> [-D STAMP=<file>] -P check_include_direction.cmake
#   Fails if a file includes something that its folder does not allow, and names both:
#   - A layer may include only itself and the layers to its left:
#       kernels/common <- kernels/device <- kernels/<kernel> <- reference <- harness <- benches
#     A room of the harness may include only itself and what it reaches along these arrows, and cli
#     all of them:
#       platform <- models, scheduler <- engine <- measure <- record <- cli
#       platform <- text
#       text, engine <- chat <- cli
#     models and scheduler must not include each other.
#   - From another kernel's folder, only kernels/<kernel>/<kernel>.h may be included. Everything else
#     there is private to the folder and to its tests and their cases (<kernel>_test.cc,
#     <kernel>_*_test.cc, <kernel>_case.h and <kernel>_*_case.h in harness/tests/kernels), except for
#     the headers in public_headers below. Every plan is also open to
#     benches/tests/sweep_plans_test.cc, which asks all of them about drawn shapes.
#   - kernels/common and reference/ must not include CUDA headers.
#   - A file of the project is included by its path from the root, in quotes, so that none of these
#     rules can be passed by.
#   The build runs this before it compiles.
cmake_minimum_required(VERSION 3.25)
cmake_path(ABSOLUTE_PATH SOURCE_DIR)

# Additional public headers of kernels, each with its reason.
set(public_headers
  # The reference must draw the same random numbers as the kernel.
  kernels/sampling/philox.h)

# Sets <out> to a regex that matches the project files that <file> may include.
function(allowed_includes out file)
  if(file MATCHES "^kernels/common/")
    set(allowed "kernels/common")
  elseif(file MATCHES "^kernels/device/")
    set(allowed "kernels/(common|device)")
  elseif(file MATCHES "^kernels/")
    set(allowed "kernels")
  elseif(file MATCHES "^reference/")
    set(allowed "kernels|reference")
  elseif(file MATCHES "^harness/platform/")
    set(allowed "kernels/(common|device)|harness/platform")
  elseif(file MATCHES "^harness/(models|text)/")
    set(allowed "kernels/common|harness/(platform|${CMAKE_MATCH_1})")
  elseif(file MATCHES "^harness/scheduler/")
    set(allowed "kernels/(common|sampling)|harness/(platform|scheduler)")
  elseif(file MATCHES "^harness/engine/")
    set(allowed "kernels|reference|harness/(platform|models|scheduler|engine)")
  elseif(file MATCHES "^harness/measure/")
    set(allowed "kernels|reference|harness/(platform|models|scheduler|engine|measure)")
  elseif(file MATCHES "^harness/record/")
    set(allowed "kernels/common|harness/(platform|models|scheduler|engine|measure|record)")
  elseif(file MATCHES "^harness/chat/")
    set(allowed "kernels|harness/(platform|models|text|scheduler|engine|chat)")
  elseif(file MATCHES "^harness/cli/")
    set(allowed "kernels|harness/(platform|models|text|scheduler|engine|measure|record|chat|cli)")
  elseif(file MATCHES "^harness/fuzz/")
    set(allowed "kernels/common|harness/(platform|models|text|fuzz)")
  elseif(file MATCHES "^harness/tests/")
    set(allowed "kernels|reference|harness")
  elseif(file MATCHES "^harness/")  # a room that is not listed above
    set(allowed "kernels/common")
  elseif(file MATCHES "^benches/tests/")
    set(allowed "kernels|reference|harness|benches")
  else()
    set(allowed "kernels|reference|harness/(platform|engine|measure|record)|benches")
  endif()
  set(${out} "^\"(${allowed})/" PARENT_SCOPE)
endfunction()

# Sets <out> to whether <included> is a header that is private to the folder of another kernel than
# that of <file>.
function(is_private out file included)
  set(${out} NO PARENT_SCOPE)
  if(NOT included MATCHES "^\"(kernels/([a-z0-9_]+)/[^\"]+)\"")
    return()
  endif()
  set(header "${CMAKE_MATCH_1}")
  set(kernel "${CMAKE_MATCH_2}")
  if(kernel MATCHES "^(common|device)$" OR header STREQUAL "kernels/${kernel}/${kernel}.h" OR
      header IN_LIST public_headers OR
      file MATCHES "^(kernels/${kernel}/|harness/tests/kernels/${kernel}(_[a-z_]+)?_(test\\.cc|case\\.h)$)" OR
      (file STREQUAL "benches/tests/sweep_plans_test.cc" AND header MATCHES "_plan\\.h$"))
    return()
  endif()
  set(${out} YES PARENT_SCOPE)
endfunction()

file(GLOB_RECURSE files RELATIVE "${SOURCE_DIR}"
  "${SOURCE_DIR}/kernels/*" "${SOURCE_DIR}/reference/*" "${SOURCE_DIR}/harness/*"
  "${SOURCE_DIR}/benches/*")
list(FILTER files INCLUDE REGEX "\\.(h|cc|cuh|cu)$")
list(FILTER files EXCLUDE REGEX "^harness/tests/build/")  # a tree of its own, which its test checks
list(SORT files)

set(violations "")
foreach(file IN LISTS files)
  allowed_includes(allowed "${file}")
  file(STRINGS "${SOURCE_DIR}/${file}" lines REGEX "^[ \t]*#[ \t]*include[ \t]")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^[ \t]*#[ \t]*include[ \t]*" "" included "${line}")
    if(included MATCHES "^\"(kernels|reference|harness|benches)/" AND NOT included MATCHES "${allowed}")
      string(APPEND violations "\n  ${file} includes ${included}, which stands right of it")
    endif()
    if(included MATCHES "^[<\"]\\.|^<(kernels|reference|harness|benches)/" OR
        (included MATCHES "^\"[^/]*\\.(h|cuh)\"" AND NOT included MATCHES "^\"tokline_"))
      string(APPEND violations "\n  ${file} includes ${included}, not by its path from the root")
    endif()
    is_private(private "${file}" "${included}")
    if(private)
      string(APPEND violations "\n  ${file} includes ${included}, which is private to its folder")
    endif()
    if(file MATCHES "^(kernels/common|reference)/" AND
        included MATCHES "^[<\"](cuda|cub/|cublas|thrust/)|\\.cuh")
      string(APPEND violations "\n  ${file} is host only, but includes ${included}")
    endif()
  endforeach()
endforeach()
if(violations)
  message(FATAL_ERROR "cmake/check_include_direction.cmake says which includes are allowed. "
    "Against it:${violations}")
endif()
if(DEFINED STAMP)
  file(TOUCH "${STAMP}")
endif()
