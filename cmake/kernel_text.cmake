# Kernel text as Metal is given it: every file of src/simt, flattened (flatten.cmake) into
# MOEBLAS_KERNEL_TEXT. The emulator compiles these files, the Metal backend embeds them.
set(MOEBLAS_KERNEL_TEXT ${CMAKE_BINARY_DIR}/kernel_text)
file(MAKE_DIRECTORY ${MOEBLAS_KERNEL_TEXT})
file(GLOB MOEBLAS_KERNEL_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/simt/*.metal)
file(GLOB headers CONFIGURE_DEPENDS
  ${CMAKE_CURRENT_SOURCE_DIR}/src/simt/*.h ${CMAKE_CURRENT_SOURCE_DIR}/src/formats/*.h)
set(MOEBLAS_FLAT_KERNELS "")
foreach(source ${MOEBLAS_KERNEL_SOURCES})
  cmake_path(GET source FILENAME name)
  add_custom_command(
    OUTPUT ${MOEBLAS_KERNEL_TEXT}/${name}
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${source} -DROOT=${CMAKE_CURRENT_SOURCE_DIR}/src
      -DOUT=${MOEBLAS_KERNEL_TEXT}/${name} -P ${CMAKE_CURRENT_LIST_DIR}/flatten.cmake
    DEPENDS ${source} ${headers} ${CMAKE_CURRENT_SOURCE_DIR}/include/moeblas/mode.h
      ${CMAKE_CURRENT_LIST_DIR}/flatten.cmake
    COMMENT "Kernel text ${name}"
    VERBATIM)
  list(APPEND MOEBLAS_FLAT_KERNELS ${MOEBLAS_KERNEL_TEXT}/${name})
endforeach()
add_custom_target(moeblas_kernel_text DEPENDS ${MOEBLAS_FLAT_KERNELS})

# All of them as strings.
set(MOEBLAS_KERNEL_STRINGS ${MOEBLAS_KERNEL_TEXT}/kernel_texts.cpp)
string(REPLACE ";" "," sources "${MOEBLAS_KERNEL_SOURCES}")
add_custom_command(
  OUTPUT ${MOEBLAS_KERNEL_STRINGS}
  COMMAND ${CMAKE_COMMAND} -DSOURCES=${sources} -DFLAT=${MOEBLAS_KERNEL_TEXT}
    -DOUT=${MOEBLAS_KERNEL_STRINGS} -P ${CMAKE_CURRENT_LIST_DIR}/embed_kernel_text.cmake
  DEPENDS ${MOEBLAS_FLAT_KERNELS} ${CMAKE_CURRENT_LIST_DIR}/embed_kernel_text.cmake
  COMMENT "Kernel texts as strings"
  VERBATIM)
add_custom_target(moeblas_kernel_strings DEPENDS ${MOEBLAS_KERNEL_STRINGS})
