// Rounds 1 and -2.5 to E4M3 with the installed library.
#include <moeblas/kernels.h>
#include <cstdio>

int main() {
  const float x[2] = {1.0f, -2.5f};
  unsigned char codes[2] = {};
  moeblas::to_fp8({x, moeblas::DType::f32, {2}}, {codes, moeblas::DType::u8, {2}});
  std::printf("moeblas %s: %02x %02x\n", moeblas_version(), codes[0], codes[1]);
  return codes[0] == 0x38 && codes[1] == 0xc2 ? 0 : 1;
}
