# tokline_add_layer(<target> DIR <dir> [EXCLUDE <file>...] [LIBS <lib>...] [CUDA_LIBS <lib>...])
#   Makes one static library of the *.cc in <dir>. Files named *_cuda.cc or *.cu may use the CUDA
#   runtime; they and CUDA_LIBS are part of it in CUDA builds only. A folder that contains only
#   headers becomes an INTERFACE library. Folders are globbed with CONFIGURE_DEPENDS, so adding a
#   file needs no edit here.
# tokline_layer_sources(<out> <dir> [EXCLUDE <file>...])
#   Sets <out> to the sources of such a layer.
# tokline_check_include_direction(<target>)
#   Makes <target>, and everything that links it, depend on the check of the include direction:
#   nothing is compiled while an include violates the layers.
# tokline_add_test(<name> SOURCES <file>... [LIBS <lib>...])
#   Adds a GoogleTest program and its ctest entry; *_cuda_test gets the label `gpu`.

function(tokline_layer_sources out dir)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "EXCLUDE")
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${dir}/*.cc"
    "${PROJECT_SOURCE_DIR}/${dir}/*.cu")
  foreach(name IN LISTS arg_EXCLUDE)
    list(REMOVE_ITEM sources "${PROJECT_SOURCE_DIR}/${dir}/${name}")
  endforeach()
  if(NOT TOKLINE_HAS_CUDA)
    list(FILTER sources EXCLUDE REGEX "(_cuda(_test)?\\.cc|\\.cu)$")
  endif()
  set(${out} "${sources}" PARENT_SCOPE)
endfunction()

function(tokline_add_library target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS;CUDA_LIBS")
  if(arg_SOURCES)
    add_library(${target} STATIC ${arg_SOURCES})
    # A *_cuda.cc names what it uses of a library of NVIDIA in its own unnamed namespace. A generated file
    # must stay an object of its own: a program that brings another one in its place links that one instead.
    set(alone ${arg_SOURCES})
    list(FILTER alone INCLUDE REGEX "(_cuda|/generated/.*)\\.cc$")
    set_source_files_properties(${alone} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    set(scope PUBLIC)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:tokline_build_options>)
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  string(REGEX REPLACE "^tokline_" "" exported "${target}")
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${exported})
  target_include_directories(${target} ${scope}
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include/tokline>)
  target_compile_features(${target} ${scope} $<INSTALL_INTERFACE:cxx_std_20>)
  target_link_libraries(${target} ${scope} ${arg_LIBS})
  if(TOKLINE_HAS_CUDA)
    target_link_libraries(${target} ${scope} ${arg_CUDA_LIBS})
  endif()
endfunction()

function(tokline_add_layer target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "DIR" "EXCLUDE;LIBS;CUDA_LIBS")
  tokline_layer_sources(sources "${arg_DIR}" EXCLUDE ${arg_EXCLUDE})
  tokline_add_library(${target} SOURCES ${sources} LIBS ${arg_LIBS} CUDA_LIBS ${arg_CUDA_LIBS})
endfunction()

function(tokline_check_include_direction target)
  set(folders kernels reference harness benches)
  list(TRANSFORM folders PREPEND "${PROJECT_SOURCE_DIR}/")
  set(patterns "")
  foreach(extension IN ITEMS h cc cuh cu)
    list(TRANSFORM folders APPEND "/*.${extension}" OUTPUT_VARIABLE pattern)
    list(APPEND patterns ${pattern})
  endforeach()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${patterns})
  set(script "${PROJECT_SOURCE_DIR}/cmake/check_include_direction.cmake")
  set(stamp "${PROJECT_BINARY_DIR}/include_direction.stamp")
  add_custom_command(OUTPUT "${stamp}"
    COMMAND "${CMAKE_COMMAND}" -D SOURCE_DIR=${PROJECT_SOURCE_DIR} -D STAMP=${stamp} -P "${script}"
    DEPENDS ${sources} "${script}" COMMENT "Checking the include direction" VERBATIM)
  add_custom_target(tokline_include_direction DEPENDS "${stamp}")
  add_dependencies(${target} tokline_include_direction)
endfunction()

function(tokline_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE tokline_build_options ${arg_LIBS} tokline_test_support
    GTest::gmock)
  # Tests are compiled for every build and run once: -O1 compiles in two thirds of the time.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(CMAKE_UNITY_BUILD)  # parse once what most tests include; the first one's are those of all
    get_property(first GLOBAL PROPERTY TOKLINE_FIRST_TEST)
    if(first)
      target_precompile_headers(${name} REUSE_FROM ${first})
    else()
      target_precompile_headers(${name} PRIVATE <gmock/gmock.h> <gtest/gtest.h> <nlohmann/json.hpp>)
      set_property(GLOBAL PROPERTY TOKLINE_FIRST_TEST ${name})
    endif()
  endif()
  target_compile_definitions(${name} PRIVATE
    TOKLINE_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
    TOKLINE_PROGRAM="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/tokline")
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  # test_main.cc exits with 77 if every test of the program was skipped; ctest then reports
  # Skipped.
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600)
  if(name MATCHES "_cuda_test$")
    set_tests_properties(${name} PROPERTIES LABELS gpu RESOURCE_LOCK gpu)
  endif()
endfunction()
