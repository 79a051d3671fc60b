# The CUDA toolkit, for the Hopper kernels.
find_program(TANDEM_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda/bin)
if(NOT CMAKE_CUDA_COMPILER AND TANDEM_NVCC)
  set(CMAKE_CUDA_COMPILER ${TANDEM_NVCC})
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
# "90a" makes CMake pass compute_90a and sm_90a alone: a plain sm_90 pass would reject WGMMA.
set(CMAKE_CUDA_ARCHITECTURES 90a-real)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
find_package(CUDAToolkit 12.8 REQUIRED)
