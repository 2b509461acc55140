# The torch operators' kernels, over torch's stable ABI: built where the Python that builds can import
# torch 2.10 or later (pip install --no-build-isolation .), one binary for every later torch.
set(MOEBLAS_TORCH AUTO CACHE STRING "Build the torch operators in C++: AUTO, ON or OFF")
set_property(CACHE MOEBLAS_TORCH PROPERTY STRINGS AUTO ON OFF)
if(NOT MOEBLAS_TORCH)
  return()
endif()

# Found without being imported, which would take seconds.
execute_process(COMMAND ${Python_EXECUTABLE} -c
    "import importlib.metadata as m, importlib.util as u, pathlib as p
print(m.version('torch'), p.Path(u.find_spec('torch').origin).parent, sep=';')"
  OUTPUT_VARIABLE torch OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE missing)
if(NOT missing)
  list(GET torch 0 torch_version)
  list(GET torch 1 torch_folder)
endif()
if(missing OR torch_version VERSION_LESS 2.10)
  if(NOT MOEBLAS_TORCH STREQUAL AUTO)
    message(FATAL_ERROR "MOEBLAS_TORCH is ${MOEBLAS_TORCH}, but ${Python_EXECUTABLE} has no torch 2.10")
  endif()
  return()
endif()

# The schemas as a string: one text for both registrations.
set(schemas ${CMAKE_CURRENT_SOURCE_DIR}/moeblas/torch/schemas.txt)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${schemas})
file(READ ${schemas} schemas)
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/generated/torch/schemas.h @ONLY CONTENT
"#pragma once
inline constexpr char kSchemas[] = R\"SCHEMAS(
@schemas@)SCHEMAS\";
")

add_library(moeblas_torch SHARED
  src/torch/call.cpp src/torch/operators.cpp src/torch/quantization.cpp src/torch/products.cpp
  src/torch/block_products.cpp src/torch/layers.cpp src/torch/shims.cpp)
target_include_directories(moeblas_torch PRIVATE src ${CMAKE_CURRENT_BINARY_DIR}/generated)
target_include_directories(moeblas_torch SYSTEM PRIVATE ${torch_folder}/include)
target_compile_definitions(moeblas_torch PRIVATE TORCH_TARGET_VERSION=0x020a000000000000)
if(APPLE)
  set(torch_library ${torch_folder}/lib/libtorch_cpu.dylib)
else()
  set(torch_library ${torch_folder}/lib/libtorch_cpu.so)
endif()
target_link_libraries(moeblas_torch PRIVATE
  moeblas moeblas_flags ${torch_library} ${CMAKE_DL_LIBS})
set_target_properties(moeblas_torch PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${tree})
add_dependencies(moeblas_python moeblas_torch)
if(SKBUILD)
  # torch is loaded before this library is: only what lies beside it is looked for.
  set_target_properties(moeblas_torch PROPERTIES
    INSTALL_RPATH $<IF:$<PLATFORM_ID:Darwin>,@loader_path,$ORIGIN>)
  install(TARGETS moeblas_torch LIBRARY DESTINATION . COMPONENT python)
endif()
