# Shortens builds, which spend most of their time parsing the headers of LibTorch, protobuf and gRPC again and again.

# Compiles sources of a target together, so that headers are parsed once per group. File-local names must then be unique
# within a target. The debug build does not use it: `.ci/full includes` checks there that every source includes what it uses.
option(TRIREME_UNITY "Compile several sources of a target as one" OFF)

function(trireme_together TARGET)
  set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ${TRIREME_UNITY} UNITY_BUILD_BATCH_SIZE 8)
endfunction()

# For tests, examples and the command: unlike the modules, their own code need not be fast. In a release build it compiles in three quarters
# of the time with -O1, in a sanitizer build in less than half of the time with -O0.
function(trireme_compile_quickly TARGET)
  target_compile_options(${TARGET} PRIVATE $<$<CONFIG:Release>:-O1>)
  set_target_properties(${TARGET} PROPERTIES TRIREME_QUICK TRUE)
endfunction()

# Links about a hundred binaries in a tenth of the time.
find_program(TRIREME_MOLD mold)
if(TRIREME_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

option(TRIREME_PRECOMPILED "Parse the headers of LibTorch and protobuf once" OFF)
if(TRIREME_PRECOMPILED)
  # gRPC requires this flag, and all targets that share a precompiled header must have the same flags.
  target_compile_options(trireme_flags INTERFACE -pthread)
  # Lets ccache distinguish precompiled headers by their content.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    target_compile_options(trireme_flags INTERFACE "SHELL:-Xclang -fno-pch-timestamp")
  else()
    target_compile_options(trireme_flags INTERFACE -fpch-preprocess)
  endif()
endif()

# trireme_precompiled(TARGET module|program): makes the target, which links LibTorch, use the precompiled header of its
# kind. There are two because libraries and programs are compiled with different flags (PIC and PIE). The header for programs
# contains torch/torch.h. g++, unlike clang, then performs all pending instantiations of that header in every source,
# which takes ten seconds. With g++ it is therefore used only by programs that include torch/torch.h themselves.
function(trireme_precompiled TARGET KIND)
  if(NOT TRIREME_PRECOMPILED)
    return()
  endif()
  if(KIND STREQUAL "program" AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    trireme_includes_torch(includes ${TARGET})
    if(NOT includes)
      return()
    endif()
  endif()
  set(from precompiled_${KIND})
  if(NOT TARGET ${from})
    file(WRITE ${PROJECT_BINARY_DIR}/${from}.cc "int main() { return 0; }\n")
    if(KIND STREQUAL "program")
      add_executable(${from} EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/${from}.cc)
      trireme_compile_quickly(${from})
    else()
      add_library(${from} STATIC EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/${from}.cc)
    endif()
    target_include_directories(${from} PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${from} PRIVATE trireme_flags trireme_torch protobuf::libprotobuf absl::status)
    target_precompile_headers(${from} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/${from}.h)
  endif()
  if(KIND STREQUAL "program" AND TRIREME_SANITIZER)
    set_target_properties(${TARGET} PROPERTIES TRIREME_QUICK TRUE)  # It must be compiled as its precompiled header is.
  endif()
  target_precompile_headers(${TARGET} REUSE_FROM ${from})
endfunction()

# Sets RESULT to TRUE if a source of the target includes torch/torch.h.
function(trireme_includes_torch RESULT TARGET)
  get_target_property(sources ${TARGET} SOURCES)
  get_target_property(folder ${TARGET} SOURCE_DIR)
  list(TRANSFORM sources PREPEND ${folder}/)
  set(${RESULT} FALSE PARENT_SCOPE)
  foreach(source IN LISTS sources)
    file(STRINGS ${source} found REGEX "^#include <torch/torch\\.h>" LIMIT_COUNT 1)
    if(found)
      set(${RESULT} TRUE PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()
