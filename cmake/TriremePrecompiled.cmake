# Precompiled headers, for the builds whose time goes into parsing LibTorch again and again. Not for the release build,
# which shows that every source includes what it uses, and where they gave nothing: g++ takes as long to load them with -O3.
option(TRIREME_PRECOMPILED "Parse the headers of LibTorch, protobuf and GoogleTest once" OFF)
if(TRIREME_PRECOMPILED)
  # gRPC asks for it, and all who share a precompiled header have to agree.
  target_compile_options(trireme_flags INTERFACE -pthread)
endif()

# trireme_precompiled(TARGET module|test): the target, which links LibTorch, uses the headers of its kind.
# Libraries and programs are compiled with different flags (PIC and PIE), hence one of each.
function(trireme_precompiled TARGET KIND)
  if(NOT TRIREME_PRECOMPILED)
    return()
  endif()
  set(from precompiled_${KIND})
  if(NOT TARGET ${from})
    file(WRITE ${PROJECT_BINARY_DIR}/${from}.cc "int main() { return 0; }\n")
    if(KIND STREQUAL "test")
      add_executable(${from} EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/${from}.cc)
      target_link_libraries(${from} PRIVATE GTest::gmock GTest::gtest)
    else()
      add_library(${from} STATIC EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/${from}.cc)
    endif()
    target_include_directories(${from} PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${from} PRIVATE trireme_flags trireme_torch protobuf::libprotobuf absl::status)
    target_precompile_headers(${from} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/${from}.h)
  endif()
  target_precompile_headers(${TARGET} REUSE_FROM ${from})
endfunction()
