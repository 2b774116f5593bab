# trireme_module(NAME
#   SOURCES  a.cc b.cc          empty for a header-only module
#   PROTOS   a.proto
#   HEADERS  a.h                public headers: installed, and free of protobuf, gRPC and abseil
#   DEPS     base cluster       modules that this one uses
#   LINK     absl::status ...   external libraries
#   TESTS    a_test.cc ...      built into one binary NAME_test
#   TEST_DEPS testing           modules that only the tests use
#   SANITIZE address thread     sanitizers under which the tests also run; address_long and thread_long: in `.ci/full` only
#   ALONE)                      runs no other test at the same time, because these measure time or memory
#
# Each folder is one module and one target.
include(TriremeBuildTime)
add_custom_target(modules)
add_custom_target(sanitized_tests)
add_custom_target(long_sanitized_tests)

# Sets RESULT to TRUE if LINK names LibTorch, or one of the modules DEPS links it.
function(trireme_links_torch RESULT DEPS LINK)
  get_property(torch GLOBAL PROPERTY TRIREME_TORCH_MODULES)
  set(links FALSE)
  foreach(dep IN LISTS DEPS)
    if(dep IN_LIST torch)
      set(links TRUE)
    endif()
  endforeach()
  if("trireme_torch" IN_LIST LINK)
    set(links TRUE)
  endif()
  set(${RESULT} ${links} PARENT_SCOPE)
endfunction()

function(trireme_module NAME)
  cmake_parse_arguments(M "ALONE" "" "SOURCES;PROTOS;HEADERS;DEPS;LINK;TESTS;TEST_DEPS;SANITIZE" ${ARGN})
  set(target trireme_${NAME})
  add_library(${target} STATIC ${M_SOURCES})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  trireme_together(${target})
  trireme_covered(${target})
  add_library(trireme::${NAME} ALIAS ${target})
  add_dependencies(modules ${target})
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)
  target_link_libraries(${target} PUBLIC trireme_flags)
  foreach(dep IN LISTS M_DEPS)
    target_link_libraries(${target} PUBLIC trireme::${dep})
  endforeach()
  target_link_libraries(${target} PUBLIC ${M_LINK})
  trireme_links_torch(torch "${M_DEPS}" "${M_LINK}")
  if(torch)
    set_property(GLOBAL APPEND PROPERTY TRIREME_TORCH_MODULES ${NAME})
    if(M_SOURCES)
      trireme_precompiled(${target} module)
    endif()
  endif()

  if(M_PROTOS)
    set(generated ${PROJECT_BINARY_DIR}/generated)
    file(MAKE_DIRECTORY ${generated})
    foreach(proto IN LISTS M_PROTOS)
      set(source ${CMAKE_CURRENT_SOURCE_DIR}/${proto})
      file(RELATIVE_PATH stem ${PROJECT_SOURCE_DIR} ${source})
      string(REGEX REPLACE "proto$" "pb" stem ${generated}/${stem})
      add_custom_command(OUTPUT ${stem}.h ${stem}.cc
                         COMMAND protobuf::protoc -I ${PROJECT_SOURCE_DIR} --cpp_out ${generated} ${source}
                         DEPENDS ${source} COMMENT "Generating ${stem}.h")
      target_sources(${target} PRIVATE ${stem}.cc ${stem}.h)
      set_source_files_properties(${stem}.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endforeach()
    target_link_libraries(${target} PUBLIC protobuf::libprotobuf)
  endif()

  foreach(header IN LISTS M_HEADERS)
    install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/trireme/${NAME} COMPONENT development)
  endforeach()
  set_property(GLOBAL APPEND PROPERTY TRIREME_MODULES ${NAME})

  if(TRIREME_BUILD_TESTS AND M_TESTS)
    if(M_ALONE)
      set(alone ALONE)
    endif()
    trireme_test(${NAME}_test SOURCES ${M_TESTS} DEPS ${NAME} ${M_TEST_DEPS} SANITIZE ${M_SANITIZE} ${alone})
  endif()
endfunction()

# trireme_test(NAME SOURCES x_test.cc DEPS base rpc [LINK …] [SANITIZE address thread] [LABELS fault] [TIMEOUT 120]
#   [ALONE] [OWN_MAIN]): adds one binary and one ctest. With ALONE no other test runs at the same time. With OWN_MAIN a source has
# the main() of the binary.
function(trireme_test NAME)
  cmake_parse_arguments(T "ALONE;OWN_MAIN" "TIMEOUT" "SOURCES;DEPS;LINK;LABELS;SANITIZE" ${ARGN})
  trireme_test_binary(${NAME} "${T_SOURCES}" "${T_DEPS}" "${T_LINK}" "${T_SANITIZE}" "${T_OWN_MAIN}")
  trireme_ctest(${NAME} "${NAME}" "${T_TIMEOUT}" "${T_LABELS};${T_SANITIZE}" "${T_ALONE}")
endfunction()

# trireme_test_group(NAME FOLDER integration SOURCES x_test.cc y_test.cc … ALONE y_test.cc …): adds one binary, because most
# of a test's build time goes into headers, and one ctest for each source, here integration/x_test and integration/y_test.
# ALONE names the sources whose tests run alone, LONG those that take a minute or more: these start first, each in two
# halves. The other arguments are those of trireme_test.
function(trireme_test_group NAME)
  cmake_parse_arguments(T "" "TIMEOUT;FOLDER" "SOURCES;DEPS;LINK;LABELS;SANITIZE;ALONE;LONG" ${ARGN})
  trireme_test_binary(${NAME} "${T_SOURCES}" "${T_DEPS}" "${T_LINK}" "${T_SANITIZE}" FALSE)
  foreach(source IN LISTS T_ALONE T_LONG)
    if(NOT source IN_LIST T_SOURCES)
      message(FATAL_ERROR "${NAME}: ${source} is in ALONE or LONG, but not in SOURCES")
    endif()
  endforeach()
  foreach(source IN LISTS T_SOURCES)
    set(alone FALSE)
    if(source IN_LIST T_ALONE)
      set(alone TRUE)
    endif()
    get_filename_component(stem ${source} NAME_WE)
    set(command "${NAME};--file=${source}")
    if(source IN_LIST T_LONG)
      foreach(half 1 2)
        set(test ${T_FOLDER}/${stem}_${half})
        trireme_ctest(${test} "${command}" "${T_TIMEOUT}" "${T_LABELS};${T_SANITIZE}" "${alone}")
        math(EXPR index "${half} - 1")
        set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT GTEST_TOTAL_SHARDS=2 GTEST_SHARD_INDEX=${index})
        set_property(TEST ${test} PROPERTY COST 100)
      endforeach()
    else()
      trireme_ctest(${T_FOLDER}/${stem} "${command}" "${T_TIMEOUT}" "${T_LABELS};${T_SANITIZE}" "${alone}")
    endif()
  endforeach()
endfunction()

function(trireme_test_binary NAME SOURCES DEPS LINK SANITIZE OWN_MAIN)
  add_executable(${NAME} ${SOURCES})
  trireme_compile_quickly(${NAME} test)
  trireme_links_torch(torch "${DEPS}" "${LINK}")
  set(main trireme_test_main)
  if(torch)
    set(main trireme_stand_in_test_main)
    trireme_together(${NAME})
    trireme_precompiled(${NAME} test)
  endif()
  if(OWN_MAIN)
    set(main)
  endif()
  list(TRANSFORM DEPS PREPEND trireme::)
  target_link_libraries(${NAME} PRIVATE ${main} ${DEPS} ${LINK} GTest::gmock GTest::gtest)
  set_target_properties(${NAME} PROPERTIES TRIREME_TEST TRUE)
  if(TRIREME_SANITIZER IN_LIST SANITIZE)
    add_dependencies(sanitized_tests ${NAME})
  elseif("${TRIREME_SANITIZER}_long" IN_LIST SANITIZE)
    add_dependencies(long_sanitized_tests ${NAME})
  endif()
endfunction()

function(trireme_ctest NAME COMMAND TIMEOUT LABELS ALONE)
  if(NOT TIMEOUT)
    set(TIMEOUT 120)
  endif()
  if(TRIREME_SANITIZER)
    math(EXPR TIMEOUT "3 * ${TIMEOUT}") # programs are several times slower then
  endif()
  add_test(NAME ${NAME} COMMAND ${COMMAND} --gtest_brief=1)
  # Tests run in parallel, and kernels whose threads wait by spinning would take seconds on busy cores.
  set_tests_properties(${NAME} PROPERTIES TIMEOUT ${TIMEOUT} LABELS "${LABELS}" RUN_SERIAL "${ALONE}"
                       ENVIRONMENT OMP_WAIT_POLICY=passive)
endfunction()
