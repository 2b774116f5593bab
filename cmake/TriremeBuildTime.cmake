# Keeps builds short: most of their time goes into parsing LibTorch, protobuf and gRPC again and again.

# Sources of a target compiled together: the headers are parsed once for each group. File-local names must then differ
# within a target. Not in the debug build: `.ci/full includes` makes it, to show that every source includes what it uses.
option(TRIREME_UNITY "Compile several sources of a target as one" OFF)

function(trireme_together TARGET)
  set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ${TRIREME_UNITY} UNITY_BUILD_BATCH_SIZE 8)
endfunction()

# Tests and examples: their own code, unlike the modules', need not be fast, and compiles in three quarters of the time.
function(trireme_compile_quickly TARGET)
  target_compile_options(${TARGET} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

option(TRIREME_PRECOMPILED "Parse the headers of LibTorch and protobuf once" OFF)
if(TRIREME_PRECOMPILED)
  # gRPC asks for it, and all targets that share a precompiled header have to agree.
  target_compile_options(trireme_flags INTERFACE -pthread)
  # So that ccache can tell two precompiled headers apart by what is in them.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    target_compile_options(trireme_flags INTERFACE "SHELL:-Xclang -fno-pch-timestamp")
  else()
    target_compile_options(trireme_flags INTERFACE -fpch-preprocess)
  endif()
endif()

# trireme_precompiled(TARGET module|program): the target, which links LibTorch, uses the headers of its kind.
# Libraries and programs are compiled with different flags (PIC and PIE), hence one of each. That of programs holds
# torch/torch.h. g++, unlike clang, then instantiates all that this header left open, for ten seconds in every source:
# with g++ it is for programs that include that header anyway.
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
  target_precompile_headers(${TARGET} REUSE_FROM ${from})
endfunction()

# Whether a source of the target includes torch/torch.h.
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
