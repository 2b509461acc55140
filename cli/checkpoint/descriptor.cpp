#include "checkpoint/descriptor.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace moeblas::checkpoint {

Error system_error(const std::string& file, const char* what) {
  return Error(file, "", std::string(what) + ": " + std::strerror(errno));
}

Descriptor::Descriptor(const std::string& file, int flags)
    : file_(file), number_(::open(file.c_str(), flags | O_CLOEXEC, 0666)) {
  if (number_ < 0) {
    throw system_error(file, flags & O_CREAT ? "cannot be created" : "cannot be opened");
  }
}

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

void Descriptor::write(const void* data, size_t bytes, uint64_t position) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::pwrite(number_, from, bytes, static_cast<off_t>(position));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) throw system_error(file_, "cannot be written");
    from += done;
    bytes -= static_cast<size_t>(done);
    position += static_cast<uint64_t>(done);
  }
}

void Descriptor::sync() {
  if (::fsync(number_) != 0) throw system_error(file_, "cannot be made durable");
}

void Descriptor::finish() {
  if (::close(std::exchange(number_, -1)) != 0) throw system_error(file_, "cannot be written");
}

}  // namespace moeblas::checkpoint
