# cmake -D SOURCE_DIR=<root> -D WORK_DIR=<scratch> -D GENERATOR=<name>
#       -D CXX_COMPILER=<path> -P add_kernel_test.cmake
#   In a scratch tree with one kernel: complete, it configures; without any one of its files, and
#   without a kernel that it is composed of, the configuration fails and names what is missing.
cmake_minimum_required(VERSION 3.25)

set(files
  kernels/toy/toy.h kernels/toy/toy_policy.cc kernels/toy/toy.cu kernels/toy/README.md
  reference/toy.h reference/toy.cc
  harness/tests/kernels/toy_test.cc harness/tests/kernels/toy_cuda_test.cc benches/bench_toy.cc
  benches/shapes/toy.json benches/shapes/cpu/toy.json)

function(write_tree line)
  file(REMOVE_RECURSE "${WORK_DIR}")
  foreach(file IN LISTS files)
    file(WRITE "${WORK_DIR}/tree/${file}" "")
  endforeach()
  file(WRITE "${WORK_DIR}/tree/CMakeLists.txt" "
    cmake_minimum_required(VERSION 3.25)
    project(scratch LANGUAGES CXX)
    include(\"${SOURCE_DIR}/cmake/TokLayer.cmake\")
    include(\"${SOURCE_DIR}/cmake/AddKernel.cmake\")
    ${line}
    if(NOT TARGET tokline_toy_host)
      message(FATAL_ERROR \"add_kernel made no target\")
    endif()")
endfunction()

function(configure)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${WORK_DIR}/tree" -B "${WORK_DIR}/build" -G "${GENERATOR}"
      "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}"
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  set(result "${result}" PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(expect_failure text)
  configure()
  string(FIND "${output}" "${text}" position)
  if(result EQUAL 0 OR position EQUAL -1)
    message(FATAL_ERROR "expected a failure saying '${text}'; exit ${result}: ${output}")
  endif()
endfunction()

write_tree("add_kernel(toy)")
configure()
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the complete tree does not configure: ${output}")
endif()

foreach(file IN LISTS files)
  write_tree("add_kernel(toy)")
  file(REMOVE "${WORK_DIR}/tree/${file}")
  expect_failure("add_kernel(toy): missing ${file}")
endforeach()

write_tree("add_kernel(toy KERNELS absent)")
expect_failure("add_kernel(toy): KERNELS absent has no add_kernel() line above it")
file(REMOVE_RECURSE "${WORK_DIR}")
