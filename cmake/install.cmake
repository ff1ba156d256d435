# SPDX-License-Identifier: Apache-2.0
# `cmake --install` puts the program, libnibble and its headers where find_package(nibble) finds them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS nibble_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS nibble_bench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} OPTIONAL)
install(TARGETS nibble EXPORT nibble LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/nibble DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT nibble NAMESPACE nibble:: FILE nibble-config.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nibble)
write_basic_package_version_file(nibble-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/nibble-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nibble)

# The manual page and completion, which the program writes itself; one for another machine is not run.
if(NOT CMAKE_CROSSCOMPILING)
  function(install_page arguments directory name)
    set(page ${PROJECT_BINARY_DIR}/pages/${name})
    install(CODE "file(MAKE_DIRECTORY \"${PROJECT_BINARY_DIR}/pages\")
      execute_process(COMMAND \"$<TARGET_FILE:nibble_cli>\" ${arguments} OUTPUT_FILE \"${page}\"
        COMMAND_ERROR_IS_FATAL ANY)")
    install(FILES ${page} DESTINATION ${directory})
  endfunction()
  install_page("help man" ${CMAKE_INSTALL_MANDIR}/man1 nibble.1)
  install_page("completion bash" ${CMAKE_INSTALL_DATADIR}/bash-completion/completions nibble)
  install_page("completion zsh" ${CMAKE_INSTALL_DATADIR}/zsh/site-functions _nibble)
  install_page("completion fish" ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d nibble.fish)
endif()
