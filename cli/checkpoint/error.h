// What every function of this folder throws about a file.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace moeblas::checkpoint {

// Text from a file, fit for a message: control characters as \xHH, cut after 120 bytes.
std::string printable(std::string_view text);
// The same in double quotes.
std::string in_quotes(std::string_view text);

// "FILE: FIELD: what is wrong": a file that cannot be read, breaks its format, or is not supported.
class Error : public std::runtime_error {
 public:
  Error(const std::string& file, std::string_view field, const std::string& what)
      : std::runtime_error(file + ": " + (field.empty() ? what : printable(field) + ": " + what)) {}
};

}  // namespace moeblas::checkpoint
