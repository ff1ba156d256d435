# SPDX-License-Identifier: Apache-2.0
# `cmake --install` puts the program, libnibble and its headers where find_package(nibble) finds them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS nibble_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS nibble EXPORT nibble LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/nibble DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT nibble NAMESPACE nibble:: FILE nibble-config.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nibble)
write_basic_package_version_file(nibble-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/nibble-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nibble)
