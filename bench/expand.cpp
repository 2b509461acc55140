#include "bench/expand.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>

#include "bench/operations.h"

namespace moeblas::bench {
namespace {

// The position of a word in a list of names; throws with the list.
template <class Names>
int position(const Names& names, const std::string& word, const char* what) {
  int i = 0;
  std::string known;
  for (const char* candidate : names) {
    if (word == candidate) return i;
    known += std::string(" ") + candidate;
    ++i;
  }
  throw std::invalid_argument("'" + word + "' is no " + what + ":" + known);
}

DType parse_dtype(const std::string& word) {
  const DType dtypes[] = {DType::f32, DType::f16, DType::bf16};
  const char* const names[] = {"float32", "float16", "bfloat16"};
  return dtypes[position(names, word, "dtype")];
}

std::vector<ShapeEntry> load_shapes(const Settings& s) {
  if (s.shapes_file.empty()) return parse_shapes(builtin_shapes());
  std::ifstream file(s.shapes_file);
  if (!file) throw std::invalid_argument("cannot read " + s.shapes_file);
  std::stringstream text;
  text << file.rdbuf();
  return parse_shapes(text.str());
}

// The wanted shapes of the kinds that an operation takes; none wanted: the first of them.
std::vector<ShapeEntry> shapes_for(const Settings& s, const std::vector<ShapeEntry>& all,
                                   const Operation& op) {
  std::vector<ShapeEntry> found;
  const auto fits = [&](const ShapeEntry& e) { return (op.kinds & kind_bit(e.kind)) != 0; };
  if (s.shapes.empty()) {
    const auto first = std::find_if(all.begin(), all.end(), fits);
    if (first != all.end()) found.push_back(*first);
  }
  for (const std::string& wanted : s.shapes) {
    for (const ShapeEntry& entry : find_shapes(all, wanted)) {
      if (fits(entry)) found.push_back(entry);
    }
  }
  return found;
}

std::vector<QuantSpec> formats_for(const Settings& s, const Operation& op, const ShapeEntry& e) {
  if (!op.takes_format) return {e.format.resolved()};
  std::vector<QuantSpec> formats;
  const auto vary = [&](Mode mode) {
    for (int bits : s.bits) {
      for (int group : s.group_sizes) formats.push_back(QuantSpec{mode, bits, group}.resolved());
    }
  };
  if (s.modes.empty()) {
    if (op.blocks && e.format.mode == Mode::affine) return {QuantSpec{Mode::nvfp4}.resolved()};
    const bool as_stored = s.bits == std::vector{0} && s.group_sizes == std::vector{0};
    if (as_stored) return {e.format.resolved()};
    vary(e.format.mode);
  }
  for (const std::string& mode : s.modes) {
    const auto* known = std::find(std::begin(kModeNames), std::end(kModeNames), mode);
    if (known != std::end(kModeNames)) {
      vary(static_cast<Mode>(known - std::begin(kModeNames)));
    } else {
      formats.push_back(parse_format(mode));  // affine8g32 and the like
    }
  }
  return formats;
}

// Every format, dtype and routing of one operation.
void vary(const Settings& s, const Operation& op, const ShapeEntry& entry, int64_t tokens,
          std::vector<CaseSpec>& group) {
  const std::vector<std::string> none{"uniform"}, rows{kScaleLayoutNames[0]};
  for (const QuantSpec& format : formats_for(s, op, entry)) {
    const bool swizzles = op.takes_scale_layout && format.mode != Mode::affine;
    for (const std::string& layout : swizzles ? s.scale_layouts : rows) {
      for (const std::string& dtype : s.dtypes) {
        for (const std::string& routing : op.takes_routing ? s.routings : none) {
          CaseSpec c;
          c.op = op.name, c.shape = entry, c.projection = s.projection, c.tokens = tokens;
          c.format = format, c.dtype = parse_dtype(dtype);
          c.scale_dtype = parse_dtype(s.scale_dtype);
          c.scale_layout =
              static_cast<ScaleLayout>(position(kScaleLayoutNames, layout, "layout of scales"));
          c.row_pitch = s.row_pitch;
          c.routing = static_cast<Routing>(position(kRoutingNames, routing, "routing"));
          c.seed = s.seed;
          product_shape(entry, s.projection);
          group.push_back(std::move(c));
        }
      }
    }
  }
}

// The operation and what is timed beside it.
std::vector<const Operation*> together(const Settings& s, const std::string& name) {
  std::vector<const Operation*> ops{&find_operation(name)};
  const auto add = [&](const std::string& other) {
    const Operation* op = &find_operation(other);
    if (std::find(ops.begin(), ops.end(), op) == ops.end()) ops.push_back(op);
  };
  for (const char* other : ops[0]->beside) {
    if (other != nullptr) add(other);
  }
  for (const std::string& other : s.beside) add(other);
  return ops;
}

std::vector<int64_t> tokens_for(const Settings& s, const Operation& op, const ShapeEntry& entry,
                                const Choose& choose) {
  if (!op.takes_tokens) return {1};
  if (s.sweep_tokens > 0) {
    return sweep_points(s.sweep_tokens, [&](int64_t tokens) {
      std::vector<CaseSpec> cases;
      vary(s, op, entry, tokens, cases);
      std::string rows;
      for (const CaseSpec& c : cases) rows += choose(c) + " ";
      return rows;
    });
  }
  if (!s.tokens.empty()) return s.tokens;
  return entry.m > 0 ? std::vector{entry.m} : std::vector<int64_t>{1, 16};
}

}  // namespace

std::vector<int64_t> sweep_points(int64_t most, const std::function<std::string(int64_t)>& chosen) {
  constexpr int64_t kEach = 1024;  // up to here every number is asked for
  std::set<int64_t> grid;
  for (int64_t power = 1; power <= most; power *= 2) {
    grid.insert(power);
    if (3 * power <= most) grid.insert(3 * power);
  }
  std::set<int64_t> points = grid;
  const auto border = [&](int64_t before) {
    for (int64_t t = before; t <= std::min(before + 2, most); ++t) points.insert(t);
  };
  std::string row = chosen(1);
  int64_t last = 1;
  const auto look = [&](int64_t t) {
    const std::string next = chosen(t);
    if (next == row) {
      last = t;
      return;
    }
    int64_t low = last, high = t;  // chosen(low) == row, chosen(high) != row
    while (high - low > 1) {
      const int64_t middle = low + (high - low) / 2;
      (chosen(middle) == row ? low : high) = middle;
    }
    border(low);
    row = next;
    last = t;
  };
  for (int64_t t = 2; t <= std::min(kEach, most); ++t) look(t);
  for (int64_t t : grid) {
    if (t > kEach) look(t);
  }
  return {points.begin(), points.end()};
}

std::vector<std::vector<CaseSpec>> expand(const Settings& s, const Choose& choose) {
  const std::vector<ShapeEntry> all = load_shapes(s);
  for (const std::string& wanted : s.shapes) find_shapes(all, wanted);
  std::vector<std::vector<CaseSpec>> groups;
  for (const std::string& op_name : s.ops) {
    const std::vector<const Operation*> ops = together(s, op_name);
    for (const ShapeEntry& entry : shapes_for(s, all, *ops[0])) {
      for (int64_t tokens : tokens_for(s, *ops[0], entry, choose)) {
        std::vector<CaseSpec>& group = groups.emplace_back();
        for (const Operation* op : ops) {
          if (op->kinds & kind_bit(entry.kind)) vary(s, *op, entry, tokens, group);
        }
      }
    }
  }
  return groups;
}

void print_list(const Settings& settings) {
  std::puts("operations:");
  for (const Operation& op : operations()) {
    std::printf("  %-18s on", op.name);
    for (Kind kind : {Kind::moe, Kind::experts, Kind::dense, Kind::segmented, Kind::qqmm}) {
      if (op.kinds & kind_bit(kind)) std::printf(" %s", name(kind));
    }
    std::puts("");
  }
  std::puts("shapes:");
  for (const ShapeEntry& e : load_shapes(settings)) {
    std::printf("  %-26s %-10s", e.name.c_str(), name(e.kind));
    const std::pair<const char*, int64_t> fields[] = {
        {"E", e.experts},     {"top_k", e.top_k},
        {"hidden", e.hidden}, {"intermediate", e.intermediate},
        {"M", e.m},           {"N", e.n},
        {"K", e.k},           {"segments", e.segments}};
    for (const auto& [key, value] : fields) {
      if (value > 0) std::printf(" %s=%lld", key, static_cast<long long>(value));
    }
    if (e.kind != Kind::segmented) std::printf(" %s", format_name(e.format.resolved()).c_str());
    std::puts("");
  }
  std::printf("routings:");
  for (const char* routing : kRoutingNames) std::printf(" %s", routing);
  std::puts(" (models with a seed, not recordings)");
}

}  // namespace moeblas::bench
