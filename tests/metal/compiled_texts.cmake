# What the mock knows the emulator to have compiled: the digests of the very files.
#   cmake -DFILES=a.metal,b.metal -DOUT=compiled_texts.cpp -P compiled_texts.cmake
cmake_minimum_required(VERSION 3.25)
string(REPLACE "," ";" FILES "${FILES}")
set(rows "")
foreach(file ${FILES})
  cmake_path(GET file FILENAME name)
  file(SHA256 ${file} digest)
  string(APPEND rows "      {\"${name}\", \"${digest}\"},\n")
endforeach()
file(WRITE ${OUT}
"#include \"emu/metal_mock/metal_mock.h\"

namespace moeblas::emu::metal {

std::span<const CompiledText> compiled_texts() {
  static constexpr CompiledText texts[] = {
${rows}  };
  return texts;
}

}  // namespace moeblas::emu::metal
")
