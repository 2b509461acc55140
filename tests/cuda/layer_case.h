// Generated expert layers for the kernels that run on thread blocks of the host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/ffn_case.h"

namespace moeblas::test {

// A layer like a model's: rows without gaps, of any number of groups.
FfnCase layer_case(uint64_t seed);
// The same of one token, float16 or bfloat16, some of them larger.
FfnCase one_token_case(uint64_t seed);

// What a kernel made of `o`, held to the reference and to where it may write; its elements.
std::vector<uint8_t> judged_output(const FfnCase& c, const FfnOperands& o, uint8_t poison,
                                   const std::string& line);

}  // namespace moeblas::test
