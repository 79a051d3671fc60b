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
add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>)
