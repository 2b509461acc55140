// JSON from files that are not trusted.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "checkpoint/error.h"

namespace moeblas::checkpoint {

using Json = nlohmann::json;

// Throws Error for anything but one JSON value, for a name that stands twice in an object, and for
// more than 32 levels.
Json parse_json(const std::string& file, std::string_view text);

// The whole of a text file of at most 64 MiB.
std::string read_text(const std::filesystem::path& path);

}  // namespace moeblas::checkpoint
