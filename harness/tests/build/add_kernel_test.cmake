# cmake -D SOURCE_DIR=<root> -D BUILD_DIR=<build> -D WORK_DIR=<scratch> -D GENERATOR=<name>
#       -D HAS_CUDA=<bool> -D HAS_BENCHES=<bool> -P add_kernel_test.cmake
#   The toy kernel is one folder, one reference, one bench, its tests and shapes, and one line:
#   - It is built against the libraries of the build; its test and its bench pass.
#   - Without any one of its files, without its params, or composed of a kernel that is not there,
#     it does not configure, and the message names what is missing.
#   - Beside a folder that has no line, it does not configure either, and the message has the line.
cmake_minimum_required(VERSION 3.25)

set(tree "${WORK_DIR}/tree")
set(build "${WORK_DIR}/build")

function(write_tree)
  file(REMOVE_RECURSE "${tree}")
  file(COPY "${CMAKE_CURRENT_LIST_DIR}/toy/" DESTINATION "${tree}")
endfunction()

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "exit ${result} of ${ARGN}: ${output}")
  endif()
endfunction()

set(configure "${CMAKE_COMMAND}" -S "${tree}" -B "${build}" -G "${GENERATOR}"
  "-DSOURCE_DIR=${SOURCE_DIR}" "-DBUILD_DIR=${BUILD_DIR}" "-DTOKLINE_CUDA=${HAS_CUDA}")

function(expect_failure text)
  execute_process(COMMAND ${configure} RESULT_VARIABLE result OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  string(FIND "${output}" "${text}" position)
  if(result EQUAL 0 OR position EQUAL -1)
    message(FATAL_ERROR "expected a failure saying '${text}'; exit ${result}: ${output}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK_DIR}")
write_tree()
run("${CMAKE_COMMAND}" -D "SOURCE_DIR=${tree}" -P
  "${SOURCE_DIR}/cmake/check_include_direction.cmake")
run(${configure})
run("${CMAKE_COMMAND}" --build "${build}")
run("${build}/bin/toy_test")
if(HAS_BENCHES)
  run("${build}/bin/bench_toy" --device cpu --verify-only)
endif()

file(GLOB_RECURSE files RELATIVE "${tree}" "${tree}/*")
list(REMOVE_ITEM files CMakeLists.txt)
foreach(file IN LISTS files)
  write_tree()
  file(REMOVE "${tree}/${file}")
  expect_failure("add_kernel(toy): missing ${file}")
endforeach()

write_tree()
file(WRITE "${tree}/kernels/toy/toy.h" "struct ToyParam {};\nstruct GameParams {};\n")
expect_failure("declares no struct whose name in lower case is toyparams")

write_tree()
file(READ "${tree}/CMakeLists.txt" lines)
string(REPLACE "add_kernel(toy)" "add_kernel(toy KERNELS absent)" lines "${lines}")
file(WRITE "${tree}/CMakeLists.txt" "${lines}")
expect_failure("add_kernel(toy): KERNELS absent has no add_kernel() line above it")

write_tree()
file(WRITE "${tree}/kernels/forgotten/forgotten.h" "")
expect_failure("kernels/forgotten has no line in CMakeLists.txt: add_kernel(forgotten)")
file(REMOVE_RECURSE "${WORK_DIR}")
