# Finds all dependencies of Trireme, in the only order that works.

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # By default ccache does not cache sources that use a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
endif()

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_package(Threads REQUIRED)
# Must come before Torch, which otherwise defines a dummy protobuf::libprotobuf with which nothing links.
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
if(TRIREME_BUILD_TESTS)
  find_package(GTest CONFIG REQUIRED)
endif()

# Finds the LibTorch that the user names (Torch_DIR, TORCH_ROOT or CMAKE_PREFIX_PATH), otherwise the
# one that tools/setup installed into .venv.
if(NOT TORCH_ROOT AND DEFINED ENV{TORCH_ROOT})
  set(TORCH_ROOT $ENV{TORCH_ROOT})
endif()
if(TORCH_ROOT)
  list(PREPEND CMAKE_PREFIX_PATH ${TORCH_ROOT})
endif()
file(GLOB venv_torch ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
find_package(Torch 2.13 QUIET HINTS ${venv_torch})
if(NOT Torch_FOUND)
  message(FATAL_ERROR
    "LibTorch 2.13 was not found. Run tools/setup, which installs it into .venv, or name your own: "
    "cmake --preset release -DTORCH_ROOT=/path/to/libtorch (the folder that holds share/cmake/Torch).")
endif()
if(TORCH_CXX_FLAGS MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
  message(FATAL_ERROR
    "The LibTorch at ${TORCH_INSTALL_PREFIX} was built with the old C++ ABI. Use a cxx11-abi build.")
endif()
if((TRIREME_CUDA OR TRIREME_NCCL) AND NOT TORCH_CUDA_LIBRARIES)
  message(FATAL_ERROR
    "TRIREME_CUDA and TRIREME_NCCL need a LibTorch that is built for CUDA, and the one at ${TORCH_INSTALL_PREFIX} is not. Name one that is: "
    "-DTORCH_ROOT=/path/to/libtorch.")
endif()

# LibTorch contains Gloo, but not its headers, which collective/gloo_engine.cc needs. Debian's library of Gloo is not linked.
find_path(GLOO_INCLUDE_DIR gloo/context.h)
if(NOT GLOO_INCLUDE_DIR)
  message(FATAL_ERROR "The headers of Gloo were not found. Run tools/setup, which installs libgloo-dev.")
endif()

# Torch's include folder contains headers of protobuf 3.13 and of its own fmt. A folder with one link,
# placed first, makes <google/...> refer to the protobuf that we link.
set(shadow_includes ${PROJECT_BINARY_DIR}/first_includes)
file(MAKE_DIRECTORY ${shadow_includes})
list(GET Protobuf_INCLUDE_DIRS 0 protobuf_include)
if(NOT protobuf_include)
  set(protobuf_include /usr/include)
endif()
file(CREATE_LINK ${protobuf_include}/google ${shadow_includes}/google SYMBOLIC)

add_library(trireme_torch INTERFACE)
target_include_directories(trireme_torch BEFORE INTERFACE ${shadow_includes})
target_include_directories(trireme_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
target_link_libraries(trireme_torch INTERFACE ${TORCH_LIBRARIES})

# Arrow, which reads Parquet files, comes from the wheel of pyarrow in .venv: its headers, and its libraries, whose names end
# with their version.
option(TRIREME_WITH_PARQUET "Read Parquet files, if tools/setup has installed Arrow into .venv" ON)
file(GLOB venv_arrow ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/pyarrow)
if(TRIREME_WITH_PARQUET AND EXISTS "${venv_arrow}/include/parquet/arrow/reader.h")
  add_library(trireme_arrow INTERFACE)
  foreach(library parquet arrow)
    file(GLOB file ${venv_arrow}/lib${library}.so.*)
    add_library(trireme_arrow_${library} SHARED IMPORTED)
    set_target_properties(trireme_arrow_${library} PROPERTIES IMPORTED_LOCATION ${file})
    target_link_libraries(trireme_arrow INTERFACE trireme_arrow_${library})
  endforeach()
  target_include_directories(trireme_arrow SYSTEM INTERFACE ${venv_arrow}/include)
  message(STATUS "Parquet files are read with Arrow from ${venv_arrow}")
else()
  message(STATUS "Parquet files cannot be read: tools/setup installs Arrow, and -DTRIREME_WITH_PARQUET=ON uses it")
endif()

add_library(trireme_flags INTERFACE)
target_compile_options(trireme_flags INTERFACE -Wall -Wextra -Werror=return-type -Wno-unused-parameter
                       -Wno-missing-field-initializers)
foreach(option TRIREME_CUDA TRIREME_NCCL)
  if(${option})
    target_compile_definitions(trireme_flags INTERFACE ${option})
  endif()
endforeach()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(trireme_flags INTERFACE -Werror=thread-safety -Wthread-safety)
endif()
# Sanitized code is compiled without optimisation, in half of the time of -O1.
if(TRIREME_SANITIZER STREQUAL "address")
  # Uses clang, so that one build has the sanitizers, the lock analysis and the coverage that libFuzzer needs.
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "TRIREME_SANITIZER=address needs clang; use `cmake --preset asan`, which sets it.")
  endif()
  # Excludes vptr and function, which need type information that LibTorch hides.
  target_compile_options(trireme_flags INTERFACE -fsanitize=address,undefined
                         -fno-sanitize=vptr,function -fno-sanitize-recover=all -fno-omit-frame-pointer -O0 -g1)
  target_link_options(trireme_flags INTERFACE -fsanitize=address,undefined -fno-sanitize=vptr,function)
elseif(TRIREME_SANITIZER STREQUAL "thread")
  # Hides symbols, so that gRPC's library does not use our instrumented copies of abseil's inline
  # functions: ThreadSanitizer would report their accesses without seeing the locks around them.
  target_compile_options(trireme_flags INTERFACE -fsanitize=thread -fno-omit-frame-pointer -O0 -g1
                         -fvisibility=hidden -fvisibility-inlines-hidden)
  target_link_options(trireme_flags INTERFACE -fsanitize=thread)
elseif(TRIREME_SANITIZER)
  message(FATAL_ERROR "TRIREME_SANITIZER is '${TRIREME_SANITIZER}'; set it to address or thread, or leave it empty.")
endif()
