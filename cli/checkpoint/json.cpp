#include "checkpoint/json.h"

#include <fstream>
#include <iterator>
#include <set>
#include <vector>

namespace moeblas::checkpoint {

Json parse_json(const std::string& file, std::string_view text) {
  constexpr int kMostLevels = 32;
  // The JSON parser would take a zero byte as the text's end.
  if (const size_t zero = text.find('\0'); zero != text.npos) {
    throw Error(file, "", "is no JSON at its byte " + std::to_string(zero + 1));
  }
  std::vector<std::set<std::string>> names;
  const auto look = [&](int depth, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    if (depth > kMostLevels) throw Error(file, "", "has more than 32 levels");
    if (event == Event::object_start) names.emplace_back();
    if (event == Event::object_end) names.pop_back();
    if (event == Event::key && !names.back().insert(parsed.get<std::string>()).second) {
      throw Error(file, parsed.get<std::string>(), "stands in one object twice");
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), look);
  } catch (const Json::parse_error& e) {
    throw Error(file, "", "is no JSON at its byte " + std::to_string(e.byte));
  } catch (const Json::exception&) {
    throw Error(file, "", "holds a number that is out of range");
  }
}

std::string read_text(const std::filesystem::path& path) {
  constexpr uintmax_t kMostBytes = uintmax_t{64} << 20;
  std::error_code failed;
  if (!std::filesystem::is_regular_file(path, failed)) {
    throw Error(path.string(), "", failed ? failed.message() : "is no regular file");
  }
  if (std::filesystem::file_size(path, failed) > kMostBytes) {
    throw Error(path.string(), "", failed ? failed.message() : "has more than 64 MiB");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw Error(path.string(), "", "cannot be read");
  return text;
}

}  // namespace moeblas::checkpoint
