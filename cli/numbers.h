// Ranges of numbers in the command line, in words: CLI11's own print the largest double.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <string>

namespace moeblas::cli {

// A finite number of at least `least`, or above it.
inline CLI::Validator number_from(int least, bool itself, const char* expected) {
  return CLI::Validator(
      [=](std::string& text) {
        double number = 0;
        const bool read = CLI::detail::lexical_cast(text, number) && std::isfinite(number);
        const bool good = read && (itself ? number >= least : number > least);
        return good ? std::string() : "is " + text + ", expected " + expected;
      },
      "");
}

inline CLI::Validator not_negative() { return number_from(0, true, "a number of at least 0"); }
inline CLI::Validator positive() { return number_from(0, false, "a number above 0"); }

}  // namespace moeblas::cli
