# What a wheel holds of the library: one stripped file beside the package's Python. libstdc++ goes in,
# so that of the machine only the C library and libgcc are needed. Of libstdc++ what is not used goes:
# the parts that would ask for a newer C library are among it. libgcc stays shared, for the same reason.
target_link_options(sirdar PRIVATE -static-libstdc++ -Wl,--gc-sections -Wl,--exclude-libs,ALL)
set_target_properties(sirdar PROPERTIES VERSION "" SOVERSION "" NO_SONAME ON)
install(TARGETS sirdar LIBRARY DESTINATION sirdar COMPONENT wheel)
