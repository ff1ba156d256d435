# SPDX-License-Identifier: Apache-2.0
# The two functions every folder uses: one static library per folder of src/, one test program per
# folder that has tests.

add_library(nibble_flags INTERFACE)
# -ffp-contract=off: the fp32 epilogues are one fixed expression on every instruction set
# (docs/numerics.md); kernels that want a fused multiply-add write it out.
set(NIBBLE_FLAGS -Wall -Wextra -Wshadow
  -Wno-missing-field-initializers  # designated initializers leave the rest at their defaults
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>  # false alarms on string concatenation in GCC 12
  -ffp-contract=off
  -fstack-protector-strong $<$<CONFIG:Release>:-D_GLIBCXX_ASSERTIONS>
  $<$<BOOL:${NIBBLE_WERROR}>:-Werror>)
target_compile_options(nibble_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:${NIBBLE_FLAGS}>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers>
  $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${NIBBLE_WERROR}>>:-Werror=all-warnings>)

# Of the files that are built with instructions a machine may lack.
set(NIBBLE_avx2_FLAGS -mavx2 -mfma)
set(NIBBLE_avx_vnni_FLAGS ${NIBBLE_avx2_FLAGS} -mavxvnni)
set(NIBBLE_avx512_FLAGS ${NIBBLE_avx2_FLAGS} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni)
# GCC 12's own AVX-512 headers warn about uninitialized values (gcc.gnu.org/PR105593).
set(NIBBLE_avx512_vbmi_FLAGS ${NIBBLE_avx512_FLAGS} -mavx512vbmi -mavx512bitalg
  -Wno-uninitialized $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
set(NIBBLE_amx_FLAGS ${NIBBLE_avx512_vbmi_FLAGS} -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16)

# Files of a folder as one, for builds that happen once: tools/test sets CMAKE_UNITY_BUILD under the
# sanitizers, which halves the time of the compiler. Parts of files have names of their own for this.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 12)

# nibble_library(base SOURCES a.cc b.cc DEPS nibble_x fmt::fmt)
function(nibble_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(nibble_${name} STATIC ${ARG_SOURCES})
  target_include_directories(nibble_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src
                             ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(nibble_${name} PUBLIC ${ARG_DEPS} PRIVATE nibble_flags)
endfunction()

# nibble_test(base SOURCES a_test.cc DEPS nibble_base): program nibble_base_tests, ctest entry base.
# With SHARDS 4 the entries base_1 to base_4, which run a quarter of its tests each. Tests are
# compiled for a short time of the compiler, libraries, where tests spend their time, for their own.
function(nibble_test name)
  if(NOT NIBBLE_TESTS STREQUAL ON AND NOT name IN_LIST NIBBLE_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "SHARDS" "SOURCES;DEPS" ${ARGN})
  find_package(GTest REQUIRED)
  add_executable(nibble_${name}_tests ${ARG_SOURCES})
  target_include_directories(nibble_${name}_tests PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(nibble_${name}_tests PRIVATE
    NIBBLE_SOURCE_DIR="${PROJECT_SOURCE_DIR}" NIBBLE_BINARY_DIR="${PROJECT_BINARY_DIR}")
  target_compile_options(nibble_${name}_tests PRIVATE $<IF:$<CONFIG:Debug>,-Og,-O1>)
  target_link_libraries(nibble_${name}_tests PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main nibble_flags)
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  foreach(shard RANGE 1 ${ARG_SHARDS})
    set(entry ${name})
    if(ARG_SHARDS GREATER 1)
      string(APPEND entry _${shard})
    endif()
    add_test(NAME ${entry} COMMAND nibble_${name}_tests
      --gtest_output=xml:${PROJECT_BINARY_DIR}/test-results/${entry}.xml)
    math(EXPR index "${shard} - 1")
    set_tests_properties(${entry} PROPERTIES
      COST ${ARG_SHARDS}  # these first
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()
