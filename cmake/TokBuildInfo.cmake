# tokline_write_build_info(<target>): gives <target> the header tokline_build_info.inc, which says
# from which sources and with which compilers and flags the build was made. Every build checks it,
# and rewrites it if something changed.
#
# Run as a script (cmake -P), this file writes the header.

if(NOT CMAKE_SCRIPT_MODE_FILE)
  function(tokline_write_build_info target)
    string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
    set(flags "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${type}}")
    set(cuda_compiler none)
    if(TOKLINE_HAS_CUDA)
      set(cuda_compiler "nvcc ${CMAKE_CUDA_COMPILER_VERSION}")
      string(APPEND flags "; nvcc ${CMAKE_CUDA_FLAGS} ${CMAKE_CUDA_FLAGS_${type}}")
      list(JOIN CMAKE_CUDA_ARCHITECTURES " " architectures)
      string(APPEND flags " for ${architectures}")
    endif()
    string(REGEX REPLACE " +" " " flags "${flags}")
    string(STRIP "${flags}" flags)
    set(directory "${PROJECT_BINARY_DIR}/generated")
    set(output "${directory}/tokline_build_info.inc")
    add_custom_target(tokline_build_info BYPRODUCTS "${output}"
      COMMAND "${CMAKE_COMMAND}" -D SOURCE_DIR=${PROJECT_SOURCE_DIR} -D OUTPUT=${output}
        -D TYPE=${CMAKE_BUILD_TYPE} "-DFLAGS=${flags}" "-DCUDA_COMPILER=${cuda_compiler}"
        -P "${PROJECT_SOURCE_DIR}/cmake/TokBuildInfo.cmake"
      COMMENT "Looking up the commit" VERBATIM)
    add_dependencies(${target} tokline_build_info)
    target_include_directories(${target} PRIVATE "${directory}")
  endfunction()
  return()
endif()

cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git rev-parse HEAD WORKING_DIRECTORY "${SOURCE_DIR}"
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE no_commit)
# Changes in results/ do not count: the built programs write them.
execute_process(COMMAND git status --porcelain --untracked-files=no -- . ":!results"
  WORKING_DIRECTORY "${SOURCE_DIR}"
  OUTPUT_VARIABLE changes ERROR_QUIET RESULT_VARIABLE no_status)
if(no_commit)
  set(commit unknown)
endif()
set(dirty false)
if(no_status)
  set(dirty unknown)
elseif(changes)
  set(dirty true)
endif()
set(text "")
foreach(entry IN ITEMS "COMMIT|${commit}" "DIRTY|${dirty}" "FLAGS|${FLAGS}"
    "CUDA_COMPILER|${CUDA_COMPILER}" "TYPE|${TYPE}")
  string(REGEX MATCH "^([A-Z_]+)\\|(.*)$" unused "${entry}")
  string(REPLACE "\\" "\\\\" value "${CMAKE_MATCH_2}")
  string(REPLACE "\"" "\\\"" value "${value}")
  string(APPEND text "#define TOKLINE_BUILD_${CMAKE_MATCH_1} \"${value}\"\n")
endforeach()
file(CONFIGURE OUTPUT "${OUTPUT}" CONTENT "@text@" @ONLY)  # leaves an unchanged file untouched
