// An open file that closes itself.
#pragma once

#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "checkpoint/error.h"

namespace moeblas::checkpoint {

// What the last system call on a file left in errno.
Error system_error(const std::string& file, const char* what);

// Everything that fails throws Error naming the file.
class Descriptor {
 public:
  Descriptor(const std::string& file, int flags);
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  operator int() const { return number_; }
  // All bytes, at a position of the file.
  void write(const void* data, size_t bytes, uint64_t position);
  // Returns when file and data survive the loss of power.
  void sync();
  // Closes it, and reports what a destructor could not.
  void finish();

 private:
  std::string file_;
  int number_;
};

}  // namespace moeblas::checkpoint
