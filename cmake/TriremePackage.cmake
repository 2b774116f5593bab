# The package that users install: one shared library of all modules, the public headers, and a CMake
# config. See docs/decisions/shared-library-package.md.
include(CMakePackageConfigHelpers)

configure_file(${PROJECT_SOURCE_DIR}/trireme/version.h.in ${PROJECT_BINARY_DIR}/generated/trireme/version.h @ONLY)

get_property(modules GLOBAL PROPERTY TRIREME_MODULES)
list(REMOVE_ITEM modules testing accelerator)
list(TRANSFORM modules PREPEND trireme_ OUTPUT_VARIABLE targets)

# Links the objects, not the archives: operators and services register themselves in static objects
# that no code refers to, and a linker takes only referenced objects from an archive.
add_library(trireme SHARED)
foreach(target IN LISTS targets)
  target_sources(trireme PRIVATE $<TARGET_OBJECTS:${target}>)
endforeach()
target_link_libraries(trireme PRIVATE ${targets})  # For the external libraries that they need.
add_library(trireme::trireme ALIAS trireme)
set_target_properties(trireme PROPERTIES
  LINKER_LANGUAGE CXX
  VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/exports.map)
# Torch's include folder and libraries come from its targets in this tree, from TriremeConfig elsewhere.
target_link_libraries(trireme PUBLIC $<BUILD_INTERFACE:trireme_torch>)
target_link_options(trireme PRIVATE
  LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map LINKER:--as-needed LINKER:-z,defs)
target_include_directories(trireme PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(trireme INTERFACE cxx_std_20)
if(TRIREME_SANITIZER)
  # The run-time library of a sanitizer is linked into executables only, so this one would not link.
  set_target_properties(trireme PROPERTIES EXCLUDE_FROM_ALL TRUE)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Trireme)
install(TARGETS trireme EXPORT TriremeTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development)
install(EXPORT TriremeTargets NAMESPACE trireme:: DESTINATION ${package_dir} COMPONENT development)
install(FILES ${PROJECT_SOURCE_DIR}/trireme/trireme.h ${PROJECT_BINARY_DIR}/generated/trireme/version.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/trireme COMPONENT development)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE
        DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/TriremeConfig.cmake.in
  ${PROJECT_BINARY_DIR}/TriremeConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TriremeConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TriremeConfig.cmake ${PROJECT_BINARY_DIR}/TriremeConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT development)
