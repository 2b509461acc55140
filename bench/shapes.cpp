#include "bench/shapes.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "formats/formats.h"

namespace moeblas::bench {
namespace {

constexpr const char* kKindNames[] = {"moe", "experts", "dense", "segmented", "qqmm"};

// Numbers by their key; which kinds must have the key and which may, as bits.
struct Key {
  const char* name;
  int64_t ShapeEntry::* field;
  unsigned kinds;
  unsigned optional = 0;
};
constexpr unsigned bit(Kind kind) { return 1u << static_cast<unsigned>(kind); }
constexpr Key kKeys[] = {
    {"experts", &ShapeEntry::experts, bit(Kind::moe) | bit(Kind::experts)},
    {"top_k", &ShapeEntry::top_k, bit(Kind::moe) | bit(Kind::experts)},
    {"hidden", &ShapeEntry::hidden, bit(Kind::moe)},
    {"intermediate", &ShapeEntry::intermediate, bit(Kind::moe)},
    {"m", &ShapeEntry::m, bit(Kind::segmented) | bit(Kind::qqmm), bit(Kind::dense)},
    {"n", &ShapeEntry::n, ~bit(Kind::moe)},
    {"k", &ShapeEntry::k, ~bit(Kind::moe)},
    {"segments", &ShapeEntry::segments, bit(Kind::segmented)},
};

[[noreturn]] void fail(int line, const std::string& what) {
  throw std::invalid_argument("shapes, line " + std::to_string(line) + ": " + what);
}

int64_t parse_size(int line, const std::string& key, const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 1) {
    fail(line, key + " is '" + text + "', expected a number of at least 1");
  }
  return value;
}

void set(ShapeEntry& entry, int line, const std::string& key, const std::string& value) {
  for (const Key& k : kKeys) {
    if (key != k.name) continue;
    if (!((k.kinds | k.optional) & bit(entry.kind)))
      fail(line, name(entry.kind) + (" has no key " + key));
    if (entry.*k.field != 0) fail(line, key + " is given twice");
    entry.*k.field = parse_size(line, key, value);
    return;
  }
  if (key == "format") {
    try {
      entry.format = parse_format(value);
    } catch (const std::invalid_argument& e) {
      fail(line, e.what());
    }
  } else if (key == "glu" && entry.kind == Kind::moe) {
    if (value != "split" && value != "interleaved") {
      fail(line, "glu is '" + value + "', expected split or interleaved");
    }
    entry.glu = value;
  } else if (key == "activation" && entry.kind == Kind::moe) {
    if (value != "silu" && value != "swiglu_clamped") {
      fail(line, "activation is '" + value + "', expected silu or swiglu_clamped");
    }
    entry.activation = value;
  } else if (key == "biases" && entry.kind == Kind::moe) {
    if (value != "yes" && value != "no") {
      fail(line, "biases is '" + value + "', expected yes or no");
    }
    entry.biases = value == "yes";
  } else {
    fail(line, name(entry.kind) + (" has no key " + key));
  }
}

ShapeEntry parse_line(int number, const std::string& line) {
  std::istringstream words(line);
  std::string kind, word;
  ShapeEntry entry;
  words >> kind >> entry.name;
  const auto* found = std::find(std::begin(kKindNames), std::end(kKindNames), kind);
  if (found == std::end(kKindNames)) {
    fail(number, "'" + kind + "' is not a kind: moe, experts, dense, segmented, qqmm");
  }
  entry.kind = static_cast<Kind>(found - std::begin(kKindNames));
  if (entry.name.empty()) fail(number, "expected a name after the kind");
  while (words >> word) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) fail(number, "'" + word + "' is not key=value");
    set(entry, number, word.substr(0, equals), word.substr(equals + 1));
  }
  for (const Key& k : kKeys) {
    if ((k.kinds & bit(entry.kind)) && entry.*k.field == 0) {
      fail(number, entry.name + " lacks " + k.name);
    }
  }
  if (entry.top_k > entry.experts) fail(number, entry.name + " has top_k above experts");
  return entry;
}

// "MxNxK": one matrix and M rows; "MxNxKxS": segmented.
std::optional<ShapeEntry> parse_sizes(const std::string& text) {
  std::vector<int64_t> sizes;
  const char* at = text.data();
  const char* end = at + text.size();
  for (int64_t size = 0;; ++at) {
    const auto [stop, error] = std::from_chars(at, end, size);
    if (error != std::errc{} || size < 1) return std::nullopt;
    sizes.push_back(size);
    at = stop;
    if (at == end || *at != 'x') break;
  }
  if (at != end || sizes.size() < 3 || sizes.size() > 4) return std::nullopt;
  ShapeEntry entry;
  entry.kind = sizes.size() == 4 ? Kind::segmented : Kind::dense;
  entry.name = text;
  entry.m = sizes[0], entry.n = sizes[1], entry.k = sizes[2];
  if (sizes.size() == 4) entry.segments = sizes[3];
  return entry;
}

}  // namespace

const char* name(Kind kind) { return kKindNames[static_cast<size_t>(kind)]; }

ProductShape product_shape(const ShapeEntry& e, std::string_view projection) {
  if (e.kind != Kind::moe) return {e.experts, std::max<int64_t>(e.top_k, 1), e.n, e.k};
  if (projection == "gate_up") return {e.experts, e.top_k, 2 * e.intermediate, e.hidden};
  if (projection == "gate") return {e.experts, e.top_k, e.intermediate, e.hidden};
  if (projection == "down") return {e.experts, e.top_k, e.hidden, e.intermediate};
  throw std::invalid_argument("projection is '" + std::string(projection) +
                              "', expected gate_up, gate or down");
}

std::vector<ShapeEntry> parse_shapes(std::string_view text) {
  std::vector<ShapeEntry> entries;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    line.resize(std::min(line.find('#'), line.size()));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    ShapeEntry entry = parse_line(number, line);
    for (const ShapeEntry& other : entries) {
      if (other.name == entry.name) fail(number, "the name " + entry.name + " is taken");
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::vector<ShapeEntry> find_shapes(const std::vector<ShapeEntry>& shapes,
                                    const std::string& wanted) {
  if (wanted == "all") return shapes;
  if (wanted.find('=') != std::string::npos) return parse_shapes(wanted);
  if (const std::optional<ShapeEntry> sizes = parse_sizes(wanted)) return {*sizes};
  std::vector<ShapeEntry> found;
  const bool all = wanted.ends_with('*');
  const std::string start = all ? wanted.substr(0, wanted.size() - 1) : wanted;
  for (const ShapeEntry& entry : shapes) {
    if (entry.name == wanted) return {entry};
    if (entry.name.starts_with(start)) found.push_back(entry);
  }
  if (found.size() == 1 || (all && !found.empty())) return found;
  std::string message = "'" + wanted + (found.empty() ? "' is no shape" : "' is ambiguous") + ":";
  for (const ShapeEntry& entry : found.empty() ? shapes : found) message += " " + entry.name;
  throw std::invalid_argument(message);
}

QuantSpec parse_format(std::string_view text) {
  for (int mode = 0; mode < kModes; ++mode) {
    const std::string_view mode_name = kModeNames[mode];
    if (!text.starts_with(mode_name)) continue;
    QuantSpec spec{static_cast<Mode>(mode), 0, 0};
    std::string rest(text.substr(mode_name.size()));
    int read = 0;
    if (rest.empty()) return spec.resolved();
    if (spec.mode == Mode::affine &&
        (std::sscanf(rest.c_str(), "%dg%d%n", &spec.bits, &spec.group_size, &read) == 2 ||
         std::sscanf(rest.c_str(), "%d-g%d%n", &spec.bits, &spec.group_size, &read) == 2 ||
         std::sscanf(rest.c_str(), "%d%n", &spec.bits, &read) == 1) &&
        static_cast<size_t>(read) == rest.size() && formats::is_legal(spec.resolved())) {
      return spec.resolved();
    }
  }
  throw std::invalid_argument("'" + std::string(text) +
                              "' is no format: affine4, affine8g32, mxfp4, mxfp8, nvfp4, ...");
}

std::string format_name(const QuantSpec& spec) {
  if (spec.mode != Mode::affine) return name(spec.mode);
  return "affine" + std::to_string(spec.bits) + "g" + std::to_string(spec.group_size);
}

}  // namespace moeblas::bench
