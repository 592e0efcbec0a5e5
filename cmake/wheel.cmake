# What a wheel holds of the library: one stripped file beside the package's Python. libstdc++ goes in,
# so that of the machine only the C library and libgcc are needed. Of libstdc++ what is not used goes:
# the parts that would ask for a newer C library are among it. libgcc stays shared, for the same reason.
add_library(sirdar_wheel SHARED EXCLUDE_FROM_ALL $<TARGET_OBJECTS:sirdar_objects>)
target_link_libraries(sirdar_wheel PRIVATE Threads::Threads)
target_link_options(sirdar_wheel PRIVATE -s -static-libstdc++ -Wl,--gc-sections
                                         -Wl,--exclude-libs,ALL -Wl,-z,defs)
set_target_properties(sirdar_wheel PROPERTIES OUTPUT_NAME sirdar NO_SONAME ON
                      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/wheel)
if(SKBUILD) # pip is at work
  install(TARGETS sirdar_wheel LIBRARY DESTINATION sirdar COMPONENT wheel)
endif()
