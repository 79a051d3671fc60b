# The CUDA toolkit, for the Hopper kernels.
find_program(TANDEM_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda/bin)
if(NOT CMAKE_CUDA_COMPILER AND TANDEM_NVCC)
  set(CMAKE_CUDA_COMPILER ${TANDEM_NVCC})
endif()
# "90a" makes CMake pass compute_90a and sm_90a alone: a plain sm_90 pass would reject WGMMA.
set(CMAKE_CUDA_ARCHITECTURES 90a-real)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
find_package(CUDAToolkit 12.8 REQUIRED)
# Debian 12's CMake (3.25) does not know how nvcc spells C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)

# Source lines in the kernels, for profilers and sanitizers; three quarters of a kernel's size.
option(TANDEM_LINE_INFO "Compile the kernels with -lineinfo" OFF)
