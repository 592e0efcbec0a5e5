# What find_package(sirdar), pkg-config and a plain compiler need: headers, library, descriptions.
include(CMakePackageConfigHelpers)

install(TARGETS sirdar EXPORT sirdar-targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/sirdar DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")

set(sirdar_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/sirdar)
install(EXPORT sirdar-targets NAMESPACE sirdar:: DESTINATION ${sirdar_cmake_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/sirdar-config.cmake.in
  ${PROJECT_BINARY_DIR}/sirdar-config.cmake INSTALL_DESTINATION ${sirdar_cmake_dir})
# Before 1.0 a minor version may break its users.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/sirdar-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/sirdar-config.cmake
              ${PROJECT_BINARY_DIR}/sirdar-config-version.cmake
        DESTINATION ${sirdar_cmake_dir})

# CMAKE_INSTALL_*DIR may be absolute (packagers do that); otherwise they follow the prefix.
foreach(kind lib include)
  string(TOUPPER ${kind} upper)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${upper}DIR}")
    set(sirdar_pc_${kind}dir "${CMAKE_INSTALL_${upper}DIR}")
  else()
    set(sirdar_pc_${kind}dir "\${prefix}/${CMAKE_INSTALL_${upper}DIR}")
  endif()
endforeach()
# Relative to the file itself, so that an installed tree may be moved.
set(sirdar_pc_dir /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(sirdar_pc_prefix "${CMAKE_INSTALL_PREFIX}")
else()
  file(RELATIVE_PATH sirdar_pc_prefix ${sirdar_pc_dir} /prefix)
  set(sirdar_pc_prefix "\${pcfiledir}/${sirdar_pc_prefix}")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/sirdar.pc.in ${PROJECT_BINARY_DIR}/sirdar.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/sirdar.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
