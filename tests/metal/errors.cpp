#include "errors.h"

#include <gtest/gtest.h>

#include "moeblas/error.h"

namespace moeblas::test {

std::string message_of(moeblas_status status, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), status) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

void expect_error(emu::ErrorKind kind, const char* words, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "no error: " << words;
  } catch (const emu::Error& e) {
    EXPECT_EQ(static_cast<int>(e.kind()), static_cast<int>(kind)) << e.what();
    EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
  }
}

}  // namespace moeblas::test
