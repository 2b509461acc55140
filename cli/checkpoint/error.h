// What every function of this folder throws about a file.
#pragma once

#include <stdexcept>
#include <string>

namespace moeblas::checkpoint {

// "FILE: FIELD: what is wrong": a file that cannot be read, breaks its format, or is not supported.
class Error : public std::runtime_error {
 public:
  Error(const std::string& file, const std::string& field, const std::string& what)
      : std::runtime_error(file + ": " + (field.empty() ? what : field + ": " + what)) {}
};

}  // namespace moeblas::checkpoint
