#include "checkpoint/error.h"

namespace moeblas::checkpoint {

std::string printable(std::string_view text) {
  constexpr size_t kMost = 120;
  constexpr char kHex[] = "0123456789abcdef";
  std::string result;
  for (const char c : text.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      result += "\\x";
      result += kHex[byte >> 4];
      result += kHex[byte & 15];
    } else {
      result += c;
    }
  }
  if (text.size() > kMost) result += "...";
  return result;
}

std::string in_quotes(std::string_view text) { return '"' + printable(text) + '"'; }

}  // namespace moeblas::checkpoint
