# Installs the built tree BUILD to a prefix under WORK, and builds and runs the consumer against it:
# through find_package with the shared and the static library, and through pkg-config; a C program with the
# static library through either, whose compiler knows nothing of what C++ needs.
foreach(variable BUILD WORK SOURCE CXX CC VERSION)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "${variable} is not set")
  endif()
endforeach()

function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${what} failed (${result}):\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(expect_greeting what)
  if(NOT output MATCHES "^moeblas ${VERSION}: 38 c2")
    message(FATAL_ERROR "${what} printed: ${output}")
  endif()
  message(STATUS "${what}: ${output}")
endfunction()

file(REMOVE_RECURSE ${WORK})
set(prefix ${WORK}/prefix)
run("install" ${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
file(GLOB_RECURSE license ${prefix}/LICENSE)
if(NOT license)
  message(FATAL_ERROR "no LICENSE is installed")
endif()
# The consumer must not find anything of the tree that was built.
foreach(kind moeblas static)
  set(build ${WORK}/${kind})
  run("configure (${kind})" ${CMAKE_COMMAND} -G Ninja -S ${SOURCE} -B ${build}
    -DCMAKE_BUILD_TYPE=Release
    -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_FLAGS=${CXX_FLAGS} -DCMAKE_PREFIX_PATH=${prefix}
    -DMOEBLAS_TARGET=moeblas::${kind})
  run("build (${kind})" ${CMAKE_COMMAND} --build ${build})
  run("run (${kind})" ${build}/consumer)
  expect_greeting("find_package, moeblas::${kind}")
endforeach()

# Sanitizers bring C++ libraries of their own.
if(NOT CXX_FLAGS)
  run("configure (C)" ${CMAKE_COMMAND} -G Ninja -S ${SOURCE}/c -B ${WORK}/c -DCMAKE_BUILD_TYPE=Release
    -DCMAKE_C_COMPILER=${CC} -DCMAKE_PREFIX_PATH=${prefix})
  run("build (C)" ${CMAKE_COMMAND} --build ${WORK}/c)
  run("run (C)" ${WORK}/c/c_consumer)
endif()

find_program(pkg_config NAMES pkg-config pkgconf)
if(NOT pkg_config)
  message(STATUS "pkg-config is not installed: its part is left out")
  return()
endif()
file(GLOB_RECURSE pc ${prefix}/moeblas.pc)
get_filename_component(folder "${pc}" DIRECTORY)
set(ENV{PKG_CONFIG_PATH} ${folder})
run("pkg-config --modversion" ${pkg_config} --modversion moeblas)
if(NOT output MATCHES "^${VERSION}")
  message(FATAL_ERROR "pkg-config says version ${output}")
endif()
run("pkg-config --cflags --libs" ${pkg_config} --cflags --libs moeblas)
string(STRIP "${output}" flags)
separate_arguments(flags UNIX_COMMAND "${flags}")
run("pkg-config --variable" ${pkg_config} --variable=libdir moeblas)
string(STRIP "${output}" libdir)
separate_arguments(cxx_flags UNIX_COMMAND "${CXX_FLAGS}")
run("build (pkg-config)" ${CXX} -std=c++20 ${cxx_flags} ${SOURCE}/main.cpp -o ${WORK}/by_pkg_config
  ${flags} -Wl,-rpath,${libdir})
run("run (pkg-config)" ${WORK}/by_pkg_config)
expect_greeting("pkg-config")

if(CXX_FLAGS)
  return()
endif()
run("pkg-config --static" ${pkg_config} --static --cflags --libs moeblas)
string(STRIP "${output}" flags)
string(REPLACE "-lmoeblas" "-l:libmoeblas.a" flags "${flags}")
separate_arguments(flags UNIX_COMMAND "${flags}")
run("build (C, pkg-config --static)" ${CC} -std=c11 ${SOURCE}/../c_api_test.c
  -o ${WORK}/c_by_pkg_config ${flags})
run("run (C, pkg-config --static)" ${WORK}/c_by_pkg_config)
