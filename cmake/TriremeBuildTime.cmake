# Shortens builds, which spend most of their time parsing the headers of LibTorch, protobuf and gRPC again and again.

# Compiles sources of a target together, so that headers are parsed once per group. File-local names must then be unique
# within a target. The debug build does not use it: `.ci/full includes` checks there that every source includes what it uses.
option(TRIREME_UNITY "Compile several sources of a target as one" OFF)

function(trireme_together TARGET)
  set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ${TRIREME_UNITY} UNITY_BUILD_BATCH_SIZE 16)
endfunction()

# trireme_compile_quickly(TARGET program|test): for code that need not be as fast as that of the modules. With -O1 it compiles in
# three quarters of the time. clang compiles tests in less than half of that with -O0, which makes no difference to g++. Examples
# and the command keep -O1, because the linker may choose their copies of inline functions for the whole binary.
function(trireme_compile_quickly TARGET KIND)
  set(level -O1)
  if(KIND STREQUAL "test" AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    set(level -O0)
  endif()
  target_compile_options(${TARGET} PRIVATE $<$<CONFIG:Release>:${level}>)
endfunction()

# Gives the sources of a module the coverage that libFuzzer needs. Tests compile faster without it.
function(trireme_covered TARGET)
  if(TRIREME_SANITIZER STREQUAL "address")
    target_compile_options(${TARGET} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# Links about a hundred binaries in a tenth of the time.
find_program(TRIREME_MOLD mold)
if(TRIREME_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# g++ would perform all pending instantiations of torch/torch.h in every source, which takes ten seconds.
option(TRIREME_PRECOMPILED "With clang: parse the headers of LibTorch and protobuf once" OFF)
if(TRIREME_PRECOMPILED AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(TRIREME_PRECOMPILED OFF)
endif()
if(TRIREME_PRECOMPILED)
  # gRPC requires the first flag, and all targets that share a precompiled header must have the same flags. The second one lets
  # ccache distinguish precompiled headers by their content.
  target_compile_options(trireme_flags INTERFACE -pthread "SHELL:-Xclang -fno-pch-timestamp")
endif()

# trireme_precompiled(TARGET module|program|test): makes the target, which links LibTorch, use the precompiled header of its
# kind. They are compiled with different flags: PIC or PIE, and the level of trireme_compile_quickly. The header for programs
# and tests contains torch/torch.h.
function(trireme_precompiled TARGET KIND)
  if(NOT TRIREME_PRECOMPILED)
    return()
  endif()
  if(KIND STREQUAL "test" AND TRIREME_SANITIZER)
    set(KIND program)  # Their flags are the same.
  endif()
  set(from precompiled_${KIND})
  if(NOT TARGET ${from})
    file(WRITE ${PROJECT_BINARY_DIR}/${from}.cc "int main() { return 0; }\n")
    set(header ${PROJECT_SOURCE_DIR}/cmake/precompiled_program.h)
    if(KIND STREQUAL "module")
      set(header ${PROJECT_SOURCE_DIR}/cmake/precompiled_module.h)
      add_library(${from} STATIC EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/${from}.cc)
      trireme_covered(${from})
    else()
      add_executable(${from} EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/${from}.cc)
      trireme_compile_quickly(${from} ${KIND})
    endif()
    target_include_directories(${from} PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${from} PRIVATE trireme_flags trireme_torch protobuf::libprotobuf absl::status)
    target_precompile_headers(${from} PRIVATE ${header})
  endif()
  target_precompile_headers(${TARGET} REUSE_FROM ${from})
endfunction()
