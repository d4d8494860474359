# add_kernel(<name> [KERNELS <kernel>...] [CUDA_LIBS <lib>...])
#   Adds one kernel from the files that the layout prescribes. If any is missing, configuring stops
#   with its name:
#     kernels/<name>/<name>.h, <name>_plan.cc (and other *.cc)   -> tokline_<name>_host
#     kernels/<name>/<name>.cu (and other *.cu)                    -> tokline_<name>_cuda
#     reference/<name>.h, <name>.cc                                -> part of tokline_reference
#     harness/tests/kernels/<name>_test.cc (and <name>_*_test.cc)  -> test <name>_test
#     harness/tests/kernels/<name>_cuda_test.cc (and <name>_*_cuda_test.cc)  -> test <name>_cuda_test
#     benches/bench_<name>.cc, shapes/<name>.json, shapes/cpu/<name>.json   -> bench_<name>
#     kernels/<name>/README.md
#   <name>.h declares `struct <Stem>Params`, where <Stem> is <name> without underscores and in any
#   case; reference/<name>.h declares `void <Stem>Reference(const <Stem>Params&)`.
#   KERNELS are the kernels that it uses. They must be added above it in the root CMakeLists.txt,
#   which keeps the dependencies free of cycles. CUDA_LIBS are libraries of the CUDA toolkit.
# tokline_finish_kernels()
#   What follows from the list of all kernels: the libraries tokline_kernels, tokline_cuda_kernels
#   and tokline_reference, and the headers kernels/kernel_list.h and reference/reference_ops.h. A
#   folder of kernels/ that is no kernel of the list, common or device stops the configuring.
# tokline_embed_shapes(<out>)
#   A source that holds the default shapes of the benches, all of benches/shapes.

# Sets <out> to the <Stem> of the kernel's params, "KvAppend" of kv_append.
function(tokline_find_stem out name)
  set(header "${PROJECT_SOURCE_DIR}/kernels/${name}/${name}.h")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${header}")
  string(REPLACE "_" "" wanted "${name}")
  file(STRINGS "${header}" lines REGEX "^struct [A-Za-z0-9]+Params( |$)")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^struct ([A-Za-z0-9]+)Params.*" "\\1" stem "${line}")
    string(TOLOWER "${stem}" lower)
    if(lower STREQUAL wanted)
      set(${out} ${stem} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "add_kernel(${name}): kernels/${name}/${name}.h declares no struct "
    "whose name in lower case is ${wanted}params")
endfunction()

function(add_kernel name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "KERNELS;CUDA_LIBS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "add_kernel(${name}): unknown ${arg_UNPARSED_ARGUMENTS}")
  endif()
  set(missing "")
  foreach(file IN ITEMS
      kernels/${name}/${name}.h kernels/${name}/${name}_plan.cc kernels/${name}/${name}.cu
      kernels/${name}/README.md reference/${name}.h reference/${name}.cc
      harness/tests/kernels/${name}_test.cc harness/tests/kernels/${name}_cuda_test.cc
      benches/bench_${name}.cc benches/shapes/${name}.json benches/shapes/cpu/${name}.json)
    if(NOT EXISTS "${PROJECT_SOURCE_DIR}/${file}")
      string(APPEND missing "\n  ${file}")
    endif()
  endforeach()
  if(missing)
    message(FATAL_ERROR "add_kernel(${name}): missing${missing}")
  endif()
  get_property(names GLOBAL PROPERTY TOKLINE_KERNEL_NAMES)
  foreach(kernel IN LISTS arg_KERNELS)
    if(NOT kernel IN_LIST names)
      message(FATAL_ERROR "add_kernel(${name}): KERNELS ${kernel} has no add_kernel() line "
        "above it")
    endif()
  endforeach()
  tokline_find_stem(stem ${name})
  set_property(GLOBAL APPEND PROPERTY TOKLINE_KERNEL_NAMES ${name})
  set_property(GLOBAL APPEND PROPERTY TOKLINE_KERNEL_STEMS ${stem})

  list(TRANSFORM arg_KERNELS REPLACE "(.+)" "tokline_\\1_host" OUTPUT_VARIABLE host_parts)
  list(TRANSFORM arg_KERNELS REPLACE "(.+)" "tokline_\\1_cuda" OUTPUT_VARIABLE cuda_parts)
  set(dir "${PROJECT_SOURCE_DIR}/kernels/${name}")
  file(GLOB host_sources CONFIGURE_DEPENDS "${dir}/*.cc")
  tokline_add_library(tokline_${name}_host SOURCES ${host_sources}
    LIBS tokline_common ${host_parts})
  set(libs tokline_${name}_host)
  if(TOKLINE_HAS_CUDA)
    file(GLOB cuda_sources CONFIGURE_DEPENDS "${dir}/*.cu")
    tokline_add_library(tokline_${name}_cuda SOURCES ${cuda_sources}
      LIBS tokline_${name}_host tokline_device ${cuda_parts} ${arg_CUDA_LIBS})
    list(PREPEND libs tokline_${name}_cuda)
  endif()

  if(TOKLINE_BUILD_TESTS)
    set(tests "${PROJECT_SOURCE_DIR}/harness/tests/kernels")
    file(GLOB host_tests CONFIGURE_DEPENDS "${tests}/${name}_test.cc" "${tests}/${name}_*_test.cc")
    set(cuda_tests ${host_tests})
    list(FILTER host_tests EXCLUDE REGEX "_cuda_test\\.cc$")
    list(FILTER cuda_tests INCLUDE REGEX "_cuda_test\\.cc$")
    tokline_add_test(${name}_test SOURCES ${host_tests}
      LIBS tokline_reference tokline_${name}_host tokline_platform)
    if(TOKLINE_HAS_CUDA)
      tokline_add_test(${name}_cuda_test SOURCES ${cuda_tests}
        LIBS tokline_reference ${libs} tokline_platform)
    endif()
  endif()
  if(TOKLINE_BUILD_BENCHES)
    add_executable(bench_${name} "${PROJECT_SOURCE_DIR}/benches/bench_${name}.cc")
    target_link_libraries(bench_${name} PRIVATE tokline_build_options tokline_bench
      tokline_reference ${libs})
  endif()
endfunction()

function(tokline_finish_kernels)
  get_property(names GLOBAL PROPERTY TOKLINE_KERNEL_NAMES)
  set(kernels "${PROJECT_SOURCE_DIR}/kernels")
  file(GLOB folders RELATIVE "${kernels}" CONFIGURE_DEPENDS "${kernels}/*")
  list(REMOVE_ITEM folders common device ${names})
  foreach(folder IN LISTS folders)
    if(IS_DIRECTORY "${kernels}/${folder}")
      message(FATAL_ERROR "kernels/${folder} has no line in CMakeLists.txt: add_kernel(${folder})")
    endif()
  endforeach()
  list(TRANSFORM names REPLACE "(.+)" "tokline_\\1_host" OUTPUT_VARIABLE host_libs)
  list(TRANSFORM names REPLACE "(.+)" "tokline_\\1_cuda" OUTPUT_VARIABLE cuda_libs)

  tokline_write_kernel_list()
  tokline_add_library(tokline_kernels LIBS tokline_common ${host_libs})
  target_include_directories(tokline_kernels INTERFACE
    $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>)
  if(TOKLINE_HAS_CUDA)
    tokline_add_library(tokline_cuda_kernels LIBS ${cuda_libs} tokline_device tokline_kernels)
  endif()

  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/reference/*.cc")
  tokline_add_library(tokline_reference SOURCES ${sources}
    LIBS tokline_kernels Eigen3::Eigen Threads::Threads)
endfunction()

function(tokline_write_kernel_list)
  get_property(names GLOBAL PROPERTY TOKLINE_KERNEL_NAMES)
  get_property(stems GLOBAL PROPERTY TOKLINE_KERNEL_STEMS)
  foreach(name stem IN ZIP_LISTS names stems)
    string(APPEND kernel_includes "#include \"kernels/${name}/${name}.h\"\n")
    string(APPEND kernel_names "    \"${name}\",\n")
    string(APPEND name_functions "constexpr std::string_view KernelName(const ${stem}Params&) "
      "{ return \"${name}\"; }\n")
    string(APPEND ops_fields "  Op<${stem}Params> ${name} = nullptr;\n")
    string(APPEND cuda_ops "      .${name} = Launch,\n")
    string(APPEND reference_includes "#include \"reference/${name}.h\"\n")
    string(APPEND reference_ops
      "      .${name} = RunReference<${stem}Params, ${stem}Reference>,\n")
  endforeach()
  set(templates "${CMAKE_CURRENT_FUNCTION_LIST_DIR}")
  set(generated "${PROJECT_BINARY_DIR}/generated")
  configure_file("${templates}/kernel_list.h.in" "${generated}/kernels/kernel_list.h" @ONLY)
  configure_file("${templates}/reference_ops.h.in" "${generated}/reference/reference_ops.h" @ONLY)
endfunction()

function(tokline_embed_shapes out)
  set(folder "${PROJECT_SOURCE_DIR}/benches/shapes")
  file(GLOB_RECURSE shapes CONFIGURE_DEPENDS "${folder}/*.json")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${shapes})
  set(entries "")
  foreach(shape IN LISTS shapes)
    cmake_path(RELATIVE_PATH shape BASE_DIRECTORY "${folder}" OUTPUT_VARIABLE path)
    file(READ "${shape}" json)
    string(APPEND entries "    Embedded{\"${path}\", R\"shapes(${json})shapes\"},\n")
  endforeach()
  set(source "${PROJECT_BINARY_DIR}/generated/benches/default_shapes.cc")
  set(template "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../benches/default_shapes.cc.in")
  configure_file("${template}" "${source}" @ONLY)
  set(${out} "${source}" PARENT_SCOPE)
endfunction()
