# Installs the headers, the libraries, the program with its embedded model, the schema of records,
# and the CMake package `tokline`.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

get_property(names GLOBAL PROPERTY TOKLINE_KERNEL_NAMES)
set(targets tokline_common tokline_kernels tokline_reference)
list(TRANSFORM names REPLACE "(.+)" "tokline_\\1_host" OUTPUT_VARIABLE host_targets)
list(APPEND targets ${host_targets})
if(TOKLINE_HAS_CUDA)
  list(TRANSFORM names REPLACE "(.+)" "tokline_\\1_cuda" OUTPUT_VARIABLE cuda_targets)
  list(APPEND targets tokline_device tokline_cuda_kernels ${cuda_targets})
endif()

install(TARGETS ${targets} EXPORT toklineTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS tokline RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY models DESTINATION ${CMAKE_INSTALL_DATADIR}/tokline)
install(FILES harness/record/record.schema.json DESTINATION ${CMAKE_INSTALL_DATADIR}/tokline)
foreach(folder IN ITEMS kernels/common reference)
  install(DIRECTORY ${folder}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tokline/${folder}
    FILES_MATCHING PATTERN "*.h")
endforeach()
# Of a kernel, the contract alone; its other headers are private to its folder.
foreach(name IN LISTS names)
  install(FILES kernels/${name}/${name}.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tokline/kernels/${name})
endforeach()
# The list of all kernels, and their references as such a list.
foreach(list IN ITEMS kernels/kernel_list.h reference/reference_ops.h)
  cmake_path(GET list PARENT_PATH folder)
  install(FILES "${PROJECT_BINARY_DIR}/generated/${list}"
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tokline/${folder})
endforeach()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tokline)
configure_package_config_file(cmake/toklineConfig.cmake.in
  "${PROJECT_BINARY_DIR}/toklineConfig.cmake" INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/toklineConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/toklineConfig.cmake"
  "${PROJECT_BINARY_DIR}/toklineConfigVersion.cmake" DESTINATION ${package_dir})
install(EXPORT toklineTargets NAMESPACE tokline:: DESTINATION ${package_dir})
