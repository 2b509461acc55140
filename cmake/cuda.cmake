# The CUDA backend: whether it is built, for what, and how kernel text becomes objects.
#
#   MOEBLAS_CUDA                 AUTO: where nvcc of MOEBLAS_CUDA_LEAST or newer is found; ON:
#                                required; OFF
#   MOEBLAS_CUDA_ARCHITECTURES   as CMake writes them; one makes for a quick build
#   MOEBLAS_CUDA_KERNELS         OFF: tables and plans without kernels, for tests that launch none
set(MOEBLAS_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO (where nvcc is found and new enough), ON or OFF")
set_property(CACHE MOEBLAS_CUDA PROPERTY STRINGS AUTO ON OFF)
set(MOEBLAS_CUDA_ARCHITECTURES "80-real;90a-real;90-virtual" CACHE STRING
  "Code for Ampere and Hopper, and text that drivers compile for what came later")
option(MOEBLAS_CUDA_KERNELS "Compile the kernels of the CUDA backend" ON)
mark_as_advanced(MOEBLAS_CUDA_KERNELS)

# cudaGetDriverEntryPointByVersion is of 12.5, cudaFuncGetParamInfo of 12.4.
set(MOEBLAS_CUDA_LEAST 12.5)

# The release that a compiler says it is of: asked before CMake enables the language, which it
# cannot take back. Empty where it says none.
function(moeblas_cuda_release compiler release)
  execute_process(COMMAND ${compiler} --version OUTPUT_VARIABLE text ERROR_QUIET)
  string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" found "${text}")
  set(${release} "${CMAKE_MATCH_1}" PARENT_SCOPE)
endfunction()

set(MOEBLAS_HAS_CUDA OFF)
if(MOEBLAS_CUDA STREQUAL AUTO OR MOEBLAS_CUDA)
  find_program(MOEBLAS_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(MOEBLAS_NVCC)
  set(nvcc ${MOEBLAS_NVCC})
  if(CMAKE_CUDA_COMPILER)
    set(nvcc ${CMAKE_CUDA_COMPILER})
  endif()
  set(lacking "")
  if(nvcc)
    moeblas_cuda_release(${nvcc} release)
    if(release AND release VERSION_LESS MOEBLAS_CUDA_LEAST)
      set(lacking "${nvcc} is of CUDA ${release}")
    endif()
  else()
    set(lacking "no nvcc was found (CMAKE_CUDA_COMPILER names one)")
  endif()
  if(NOT lacking)
    set(MOEBLAS_HAS_CUDA ON)
  elseif(MOEBLAS_CUDA STREQUAL AUTO)
    message(STATUS "moeblas: ${lacking}, so CUDA, which needs ${MOEBLAS_CUDA_LEAST} or newer, is left out (MOEBLAS_CUDA=ON makes this an error)")
  else()
    message(FATAL_ERROR
      "moeblas: MOEBLAS_CUDA=ON needs CUDA ${MOEBLAS_CUDA_LEAST} or newer, but ${lacking}")
  endif()
else()
  message(STATUS "moeblas: CUDA is left out (MOEBLAS_CUDA=OFF)")
endif()

if(MOEBLAS_HAS_CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${MOEBLAS_NVCC})
  endif()
  # Its own choice can be another compiler than the one that builds the rest.
  if(NOT CMAKE_CUDA_HOST_COMPILER AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${MOEBLAS_CUDA_ARCHITECTURES})
  # The runtime comes from CUDA::cudart_static, by name, so that C++ does the linking.
  set(CMAKE_CUDA_RUNTIME_LIBRARY None)
  if(CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
  endif()
  enable_language(CUDA)
  # Hopper's own instructions are only in code for sm_90a, which "native" does not mean.
  if(MOEBLAS_CUDA_ARCHITECTURES STREQUAL native AND CMAKE_CUDA_ARCHITECTURES_NATIVE)
    string(REPLACE "90-" "90a-" MOEBLAS_CUDA_ARCHITECTURES "${CMAKE_CUDA_ARCHITECTURES_NATIVE}")
    set(CMAKE_CUDA_ARCHITECTURES ${MOEBLAS_CUDA_ARCHITECTURES})
  endif()
  find_package(CUDAToolkit ${MOEBLAS_CUDA_LEAST} REQUIRED)
  set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  message(STATUS "moeblas: CUDA ${CMAKE_CUDA_COMPILER_VERSION}, code for ${MOEBLAS_CUDA_ARCHITECTURES}")
endif()

# moeblas_cuda_kernels(target FILES...): objects of kernel text, and the source that refers to each
# of them. Nothing else does - kernels are found by name - so that without it a linker would take
# none from a static library.
function(moeblas_cuda_kernels target)
  set(declarations "")
  set(addresses "")
  foreach(file ${ARGN})
    # With their folders: files of several have the same name.
    cmake_path(RELATIVE_PATH file BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/src OUTPUT_VARIABLE within)
    string(MAKE_C_IDENTIFIER moeblas_cuda_kernels_of_${within} symbol)
    set_source_files_properties(${file} PROPERTIES LANGUAGE CUDA
      COMPILE_DEFINITIONS MB_CUDA_FILE=${symbol})
    string(APPEND declarations "extern const int ${symbol};\n")
    string(APPEND addresses "    &${symbol},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${target}_files.cpp CONTENT
    "${declarations}\nextern const int* const ${target}_files[];\nconst int* const ${target}_files[] = {\n${addresses}    nullptr,\n};\n")
  add_library(${target} OBJECT ${ARGN} ${CMAKE_CURRENT_BINARY_DIR}/${target}_files.cpp)
  target_link_libraries(${target} PRIVATE moeblas_simt_headers)
  target_compile_features(${target} PRIVATE cuda_std_17 cxx_std_20)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:
    # Fused multiply-add is the products' to use: the formats ask for single roundings by name.
    -fmad=true -Xcompiler=-Wall,-Wextra,-Wno-psabi,-ffp-contract=off
    # Of several architectures, all at once.
    --threads=0
    $<$<BOOL:${MOEBLAS_WERROR}>:-Werror=all-warnings>>)
endfunction()
