// Compiled by the compiler of kernel text, for it alone: others have no such type. -nostdinc.

// To the nearest, ties to even; a NaN stays one.
extern "C" __attribute__((weak)) __bf16 __truncsfbf2(float value) {
  const unsigned bits = __builtin_bit_cast(unsigned, value);
  unsigned short top;
  if (value != value) {
    top = static_cast<unsigned short>((bits >> 16) | 0x40u);
  } else {
    top = static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
  return __builtin_bit_cast(__bf16, top);
}
