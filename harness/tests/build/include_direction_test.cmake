# cmake -D SOURCE_DIR=<root> -D WORK_DIR=<scratch> -P include_direction_test.cmake
#   The tree itself keeps the include direction, and the check sees each kind of violation.
cmake_minimum_required(VERSION 3.25)

function(check dir)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -D SOURCE_DIR=${dir} -P
      "${SOURCE_DIR}/cmake/check_include_direction.cmake"
    RESULT_VARIABLE result ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  set(result "${result}" PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
endfunction()

check("${SOURCE_DIR}")
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${output}")
endif()

function(expect_refused file included)
  file(REMOVE_RECURSE "${WORK_DIR}")
  file(WRITE "${WORK_DIR}/${file}" "#pragma once\n  #  include ${included}\n")
  check("${WORK_DIR}")
  string(FIND "${output}" "${included}" position)
  if(result EQUAL 0 OR position EQUAL -1)
    message(FATAL_ERROR "${file} may include ${included}: exit ${result}, ${output}")
  endif()
endfunction()

expect_refused(kernels/common/a.h "\"kernels/toy/toy.h\"")
expect_refused(kernels/common/a.h "<cuda_runtime.h>")
expect_refused(kernels/device/a.cuh "\"kernels/toy/toy.h\"")
expect_refused(kernels/toy/toy.cu "\"reference/toy.h\"")
expect_refused(kernels/toy/toy_policy.cc "\"harness/core/device.h\"")
expect_refused(reference/toy.cc "\"harness/core/device.h\"")
expect_refused(reference/toy.cc "<cuda_bf16.h>")
expect_refused(harness/core/a.cc "\"harness/models/model_spec.h\"")
expect_refused(harness/models/a.cc "\"harness/decoder/decoder.h\"")
expect_refused(harness/decoder/a.cc "\"harness/cli/a.h\"")
expect_refused(harness/cli/main.cc "\"benches/a.h\"")
expect_refused(harness/cli/main.cc "\"harness/tests/a.h\"")
expect_refused(benches/bench_toy.cc "\"harness/cli/a.h\"")

file(REMOVE_RECURSE "${WORK_DIR}")
file(WRITE "${WORK_DIR}/benches/bench_toy.cc" "#include \"kernels/toy/toy.h\"\n#include <cuda.h>\n")
check("${WORK_DIR}")
if(NOT result EQUAL 0)
  message(FATAL_ERROR "an allowed include is refused: ${output}")
endif()
file(REMOVE_RECURSE "${WORK_DIR}")
