// What a call throws. In C++ alone: Objective-C++ code catches no C++ exceptions under GNUstep.
#pragma once

#include <functional>
#include <string>

#include "emu/emulator.h"
#include "moeblas/moeblas.h"

namespace moeblas::test {

// The message of the Error that `call` throws; the test fails if it throws none of this status.
std::string message_of(moeblas_status status, const std::function<void()>& call);

// The test fails unless `call` throws an emu::Error of this kind with these words in it.
void expect_error(emu::ErrorKind kind, const char* words, const std::function<void()>& call);

}  // namespace moeblas::test
