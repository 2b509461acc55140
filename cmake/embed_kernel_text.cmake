# Flattened kernel texts as a C++ source: what src/metal/kernel_texts.h declares.
#   cmake -DSOURCES=a.metal,b.metal -DFLAT=folder -DOUT=kernel_texts.cpp -P embed_kernel_text.cmake
# A text's kernels are known by how their names begin: a whole name, or what stands before the part
# that a macro fills in.
cmake_minimum_required(VERSION 3.25)

string(REPLACE "," ";" SOURCES "${SOURCES}")
set(lists "")
set(rows "")
foreach(source ${SOURCES})
  cmake_path(GET source FILENAME name)
  cmake_path(GET source STEM stem)
  file(READ ${source} text)
  string(REGEX MATCHALL "MB_(ENTRY|INSTANTIATE)\\([a-z0-9_]+" made "${text}")
  list(TRANSFORM made REPLACE "^.*\\(" "")
  list(REMOVE_DUPLICATES made)
  list(JOIN made "\", \"" made)
  file(READ ${FLAT}/${name} text)
  string(SHA256 digest "${text}")
  string(APPEND lists
    "constexpr const char* k_${stem}_kernels[] = {\"${made}\"};\n"
    "constexpr const char k_${stem}_text[] = R\"metal(${text})metal\";\n")
  string(APPEND rows "    {\"${name}\", \"${digest}\", k_${stem}_text, k_${stem}_kernels},\n")
endforeach()
file(WRITE "${OUT}"
"#include \"metal/kernel_texts.h\"

namespace moeblas::metal {
namespace {
${lists}
constexpr KernelText kTexts[] = {
${rows}};
}  // namespace

std::span<const KernelText> kernel_texts() { return kTexts; }

}  // namespace moeblas::metal
")
