# SPDX-License-Identifier: Apache-2.0
# Whether CUDA is built (NIBBLE_HAS_CUDA), and for which GPUs. Included at the top, since a language
# is enabled for the folder that does it.

set(NIBBLE_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO (if there is a toolkit), ON or OFF")
set_property(CACHE NIBBLE_CUDA PROPERTY STRINGS AUTO ON OFF)
# "80" is machine code and PTX, which drivers compile for GPUs that are not in the list.
set(NIBBLE_CUDA_ARCHITECTURES "80;86-real;89-real;90a-real" CACHE STRING
  "GPUs that kernels are compiled for; those that need sm_90a are compiled for it in any case")

set(NIBBLE_HAS_CUDA OFF)
if(NIBBLE_CUDA)
  find_package(CUDAToolkit 12.4)  # also looks into /usr/local/cuda
  if(CUDAToolkit_FOUND)
    if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
      set(ENV{CUDACXX} ${CUDAToolkit_NVCC_EXECUTABLE})
    endif()
    set(CMAKE_CUDA_ARCHITECTURES ${NIBBLE_CUDA_ARCHITECTURES})
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      set(NIBBLE_HAS_CUDA ON)
    endif()
  endif()
  if(NIBBLE_CUDA STREQUAL "ON" AND NOT NIBBLE_HAS_CUDA)
    message(FATAL_ERROR "NIBBLE_CUDA=ON, but there is no CUDA toolkit of version 12.4 or newer")
  endif()
endif()

if(NIBBLE_HAS_CUDA)
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  if(CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
  endif()
endif()

# cuDNN's headers and those of its C++ frontend, which tools/setup and `pip install
# nvidia-cudnn-frontend` install. Without them long prompts run on the kernel for all prompts.
set(NIBBLE_HAS_CUDNN OFF)
if(NIBBLE_HAS_CUDA)
  find_package(Python3 COMPONENTS Interpreter QUIET)
  find_path(NIBBLE_CUDNN cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} DOC "Folder of cudnn.h")
  find_path(NIBBLE_CUDNN_FRONTEND cudnn_frontend.h DOC "Folder of cudnn_frontend.h"
    HINTS /usr/local/share/cudnn-frontend/include ${Python3_SITELIB}/include)
  if(NIBBLE_CUDNN AND NIBBLE_CUDNN_FRONTEND)
    set(NIBBLE_HAS_CUDNN ON)
  endif()
  message(STATUS "cuDNN attention: ${NIBBLE_HAS_CUDNN}")
endif()
