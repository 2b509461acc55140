# moeblas_add_simt_library(<target> file.metal ...): kernel text, compiled for the emulator.
#
# Linking <target> into a program makes its kernels known by name. clang-19 does it whatever compiles
# the rest: it alone has bfloat arithmetic and vector types as the language has them. Each file is
# also compiled in check mode (address spaces, C++14), so that a pointer into the wrong memory fails
# the build.

find_program(MOEBLAS_EMU_CLANG clang++-19 DOC "clang++ 19, for kernel text on the CPU")
find_program(MOEBLAS_EMU_CCACHE ccache)

# Sanitizers follow the rest.
string(REPLACE "," ";" MOEBLAS_EMU_SANITIZERS "${MOEBLAS_SANITIZE}")

set(MOEBLAS_EMU_SOURCE_DIR ${CMAKE_CURRENT_LIST_DIR})
set(MOEBLAS_EMU_LANGUAGE_FLAGS
  -x c++ -nostdinc -isystem ${CMAKE_CURRENT_LIST_DIR}/msl -I${CMAKE_CURRENT_LIST_DIR}/../src
  -D__METAL_VERSION__=310 -fno-exceptions -fno-rtti
  # Attributes of the language that C++ does not know; `constant` next to const.
  -Wno-unknown-attributes -Wno-ignored-attributes -Wno-duplicate-decl-specifier
  -Wall -Wextra -Wno-unused-parameter
  # What narrows without a word is refused, whatever Apple's compiler would let pass.
  -Werror=implicit-float-conversion -Werror=float-conversion -Werror=implicit-int-conversion
  -Werror=shorten-64-to-32 -Werror=double-promotion -Werror=conditional-uninitialized
  -Werror=return-type -Werror=uninitialized -Werror=vla -Werror=array-bounds)
set(MOEBLAS_EMU_CHECK_FLAGS -std=c++14 -fsyntax-only -DMOEBLAS_EMU_CHECK)

# Code generation: no contraction (the value functions rely on it), no vectorizer (accesses keep their
# sizes), and a call before every load and store. That call is AddressSanitizer's, under a name of
# ours: with the sanitizer on, the same pass watches arrays in thread memory too.
set(MOEBLAS_EMU_CODE_FLAGS -std=c++17 -O1 -g -ffp-contract=off -fno-vectorize -fno-slp-vectorize
  -fno-omit-frame-pointer -fPIC)
set(MOEBLAS_EMU_HOOK_FLAGS
  -mllvm -asan-memory-access-callback-prefix=moeblas_emu_
  -mllvm -asan-instrumentation-with-call-threshold=0
  -mllvm -asan-opt-same-temp=0)
if("address" IN_LIST MOEBLAS_EMU_SANITIZERS)
  list(APPEND MOEBLAS_EMU_HOOK_FLAGS -fsanitize=address -fsanitize-recover=address
    -fsanitize-address-use-after-return=never)
else()
  list(APPEND MOEBLAS_EMU_HOOK_FLAGS -fsanitize=kernel-address
    -mllvm -asan-kernel-mem-intrinsic-prefix=1 -mllvm -asan-stack=0 -mllvm -asan-globals=0)
endif()
# Undefined behaviour is an error of the emulator (runtime/undefined.cpp). With any sanitizer on, its
# library brings the handlers, and the program ends at the fault. Null pointers are the emulator's in any case: it knows the buffer.
list(APPEND MOEBLAS_EMU_CODE_FLAGS
  -fsanitize=alignment,array-bounds,bool,float-cast-overflow,integer-divide-by-zero,return,shift
  -fsanitize=signed-integer-overflow,unreachable)
if(MOEBLAS_EMU_SANITIZERS)
  list(APPEND MOEBLAS_EMU_CODE_FLAGS -fno-sanitize-recover=undefined,float-cast-overflow)
else()
  list(APPEND MOEBLAS_EMU_CODE_FLAGS -fsanitize-recover=undefined,float-cast-overflow)
endif()

# Compiles one file; sets <result> to the object.
function(moeblas_simt_object source result)
  cmake_parse_arguments(PARSE_ARGV 2 arg "NO_HOOKS" "" "")
  cmake_path(GET source FILENAME name)
  string(SHA1 digest ${source})
  string(SUBSTRING ${digest} 0 8 digest)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/simt/${name}.${digest}.o)
  file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/simt)
  set(hooks ${MOEBLAS_EMU_HOOK_FLAGS})
  set(check COMMAND ${MOEBLAS_EMU_CLANG} ${MOEBLAS_EMU_LANGUAGE_FLAGS} ${MOEBLAS_EMU_CHECK_FLAGS}
    ${source})
  if(arg_NO_HOOKS)
    set(hooks "")
    set(check "")
  endif()
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${MOEBLAS_EMU_CCACHE} ${MOEBLAS_EMU_CLANG} ${MOEBLAS_EMU_LANGUAGE_FLAGS}
      ${MOEBLAS_EMU_CODE_FLAGS} ${hooks} -MD -MF ${object}.d -c ${source} -o ${object}
    ${check}
    DEPENDS ${source}
    DEPFILE ${object}.d
    COMMENT "Kernel text ${name} for the emulator"
    VERBATIM)
  set(${result} ${object} PARENT_SCOPE)
endfunction()

function(moeblas_add_simt_library target)
  set(objects "")
  foreach(source IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH source NORMALIZE)
    moeblas_simt_object(${source} object)
    list(APPEND objects ${object})
  endforeach()
  add_custom_target(${target}_objects DEPENDS ${objects})
  # Objects, not an archive: nothing refers to a kernel by symbol, so an archive would drop them.
  add_library(${target} INTERFACE)
  target_link_libraries(${target} INTERFACE ${objects} moeblas_emulator)
  add_dependencies(${target} ${target}_objects)
endfunction()
