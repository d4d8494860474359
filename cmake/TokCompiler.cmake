# Decides whether to build with CUDA, sets the language levels, and defines tokline_build_options,
# the compiler flags of our own sources. It is always linked PRIVATE, so that no consumer inherits
# a warning.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
# A build folder that is copied to another machine finds the libraries beside its programs.
set(CMAKE_BUILD_RPATH "$ORIGIN")
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib")
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)  # cuBLASLt stays in the toolkit's folder

if(NOT TOKLINE_CUDA MATCHES "^(ON|OFF|AUTO)$")
  message(FATAL_ERROR "TOKLINE_CUDA is '${TOKLINE_CUDA}'; allowed: ON, OFF, AUTO")
endif()

set(TOKLINE_HAS_CUDA OFF)
if(NOT TOKLINE_CUDA STREQUAL "OFF")
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(TOKLINE_NVCC nvcc
      HINTS "${CUDAToolkit_ROOT}/bin" "$ENV{CUDAToolkit_ROOT}/bin" "$ENV{CUDA_HOME}/bin"
      PATHS /usr/local/cuda/bin)
    if(DEFINED ENV{CUDACXX})
      set(CMAKE_CUDA_COMPILER "$ENV{CUDACXX}")
    elseif(TOKLINE_NVCC)
      set(CMAKE_CUDA_COMPILER "${TOKLINE_NVCC}")
    endif()
  endif()
  if(CMAKE_CUDA_COMPILER)
    set(TOKLINE_HAS_CUDA ON)
  elseif(TOKLINE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TOKLINE_CUDA=ON, but no nvcc was found in PATH, CUDAToolkit_ROOT, "
      "CUDA_HOME or /usr/local/cuda. Set CMAKE_CUDA_COMPILER, or run scripts/test --cuda pypi.")
  endif()
endif()

if(TOKLINE_HAS_CUDA)
  # One portable target (SASS for 8.x, PTX for everything newer) and one for features specific to
  # Hopper.
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES "80;90a-real" CACHE STRING "CUDA architectures" FORCE)
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  # CMake 3.25 does not know that nvcc supports C++20; later versions do.
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  # If a project requires CMake 3.25 or later, FindCUDAToolkit of 3.25 marks CUDA::nvToolsExt as
  # deprecated even if the toolkit (13 and newer) has no such target, and stops with an error. So it
  # is shown an older requirement.
  set(required_version ${CMAKE_MINIMUM_REQUIRED_VERSION})
  set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
  find_package(CUDAToolkit REQUIRED)
  set(CMAKE_MINIMUM_REQUIRED_VERSION ${required_version})
endif()
message(STATUS "Tokline: CUDA ${TOKLINE_HAS_CUDA} (TOKLINE_CUDA=${TOKLINE_CUDA}) "
  "${CMAKE_CUDA_COMPILER_VERSION} ${CMAKE_CUDA_ARCHITECTURES}")

add_library(tokline_build_options INTERFACE)
target_compile_definitions(tokline_build_options
  INTERFACE TOKLINE_HAS_CUDA=$<BOOL:${TOKLINE_HAS_CUDA}>)
# Designated initializers omit fields on purpose.
set(host_warnings -Wall -Wextra -Wno-missing-field-initializers)
if(TOKLINE_WERROR)
  list(APPEND host_warnings -Werror)
endif()
target_compile_options(tokline_build_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${host_warnings}>")
if(TOKLINE_HAS_CUDA)
  list(JOIN host_warnings "," nvcc_host_warnings)
  set(nvcc_flags --expt-relaxed-constexpr -lineinfo -Xcompiler=${nvcc_host_warnings})
  target_compile_options(tokline_build_options INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:${nvcc_flags}>")
  if(TOKLINE_WERROR)
    target_compile_options(tokline_build_options INTERFACE
      "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>")
  endif()
endif()
if(TOKLINE_SANITIZE)
  target_compile_options(tokline_build_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>)
  target_link_options(tokline_build_options INTERFACE -fsanitize=address,undefined)
endif()
