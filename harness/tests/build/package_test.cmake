# cmake -D BUILD_DIR=<build> -D CONSUMER_DIR=<dir> -D WORK_DIR=<scratch> -D GENERATOR=<name>
#       -D CXX_COMPILER=<path> -D HAS_CUDA=<bool> -D CUDA_ROOT=<toolkit> -P package_test.cmake
#   Installs the build to a scratch prefix, builds the consumer against find_package(tokline) alone,
#   and runs it.
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE "${WORK_DIR}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${WORK_DIR}/prefix"
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(GLOB private "${WORK_DIR}/prefix/include/tokline/kernels/*/*_plan.h"
  "${WORK_DIR}/prefix/include/tokline/kernels/device")
if(private)
  message(FATAL_ERROR "the package holds private headers: ${private}")
endif()
execute_process(
  COMMAND "${CMAKE_COMMAND}" -S "${CONSUMER_DIR}" -B "${WORK_DIR}/build" -G "${GENERATOR}"
    "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix"
    "-DCUDAToolkit_ROOT=${CUDA_ROOT}" "-DEXPECT_CUDA=${HAS_CUDA}"
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${WORK_DIR}/build" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${WORK_DIR}/build/consumer" COMMAND_ERROR_IS_FATAL ANY)
# Who asks for CUDA where there is none is told so in Tokline's words.
if(NOT HAS_CUDA)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${CONSUMER_DIR}" -B "${WORK_DIR}/cuda" -G "${GENERATOR}"
      "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix" -DEXPECT_CUDA=ON
    RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE said)
  if(code EQUAL 0 OR NOT said MATCHES "installed without CUDA")
    message(FATAL_ERROR "a consumer that asks for CUDA: exit ${code}, ${said}")
  endif()
endif()
file(REMOVE_RECURSE "${WORK_DIR}")
