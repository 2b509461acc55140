// The format headers as C++; compiled by every C++ compiler that is found, as C++17 and C++20.
#include "every_format.h"

float use(float a, float b);
float use(float a, float b) { return moeblas::formats::use_every_format(a, b); }
