// An open file that closes itself.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "checkpoint/error.h"

namespace moeblas::checkpoint {

// What the last system call on a file left in errno.
inline Error system_error(const std::string& file, const char* what) {
  return Error(file, "", std::string(what) + ": " + std::strerror(errno));
}

class Descriptor {
 public:
  Descriptor(const std::string& file, int flags)
      : number_(::open(file.c_str(), flags | O_CLOEXEC, 0666)) {
    if (number_ < 0) {
      throw system_error(file, flags & O_CREAT ? "cannot be created" : "cannot be opened");
    }
  }
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  operator int() const { return number_; }
  // What a destructor could not report.
  bool close() { return ::close(std::exchange(number_, -1)) == 0; }

 private:
  int number_;
};

}  // namespace moeblas::checkpoint
