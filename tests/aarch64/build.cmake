# Builds SOURCE in BUILD with TOOLCHAIN.
foreach(command
    "-G;Ninja;-S;${SOURCE};-B;${BUILD};--toolchain;${TOOLCHAIN}"
    "--build;${BUILD};-j2")
  execute_process(COMMAND ${CMAKE_COMMAND} ${command} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "cmake ${command} failed (${result}):\n${output}")
  endif()
endforeach()
