// moeblas::Error: what every failing call of the C++ interface throws.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "moeblas/moeblas.h"

namespace moeblas {

// Status code and message of a failed call; the message names operation, argument, what was
// expected and what came.
class Error : public std::exception {
 public:
  Error(moeblas_status status, std::string message)
      : status_(status), message_(std::move(message)) {}
  moeblas_status status() const noexcept { return status_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  moeblas_status status_;
  std::string message_;
};

// Throws the calling thread's last message unless status is MOEBLAS_OK.
inline void check(moeblas_status status) {
  if (status != MOEBLAS_OK) throw Error(status, moeblas_last_error());
}

}  // namespace moeblas
