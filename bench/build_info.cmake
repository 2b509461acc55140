# Writes OUTPUT from the state of the checkout, if it differs from what is there.
#   cmake -DSOURCE=... -DOUTPUT=... -DCOMPILER=... -DTYPE=... -P build_info.cmake
execute_process(COMMAND git -C ${SOURCE} rev-parse HEAD
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
if(failed)
  set(commit unknown)
endif()
execute_process(COMMAND git -C ${SOURCE} status --porcelain
  OUTPUT_VARIABLE changes OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
set(dirty false)
if(changes)
  set(dirty true)
endif()
set(text "#include \"bench/build_info.h\"

namespace moeblas::bench {
const BuildInfo kBuild = {\"${commit}\", ${dirty}, \"${COMPILER}\", \"${TYPE}\"};
}
")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT "${old}" STREQUAL "${text}")
  file(WRITE ${OUTPUT} "${text}")
endif()
