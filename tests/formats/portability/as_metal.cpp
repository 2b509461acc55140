// The format headers as the Metal Shading Language, as far as a C++14 compiler without any standard
// header can stand in for it. text_rules_test.cpp checks what this compiler would let through.
#include "every_format.h"

float use(float a, float b);
float use(float a, float b) { return moeblas::formats::use_every_format(a, b); }
