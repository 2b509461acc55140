// Defects of what is not a tensor: quantized arguments, the structs of some operations, options,
// and ids out of range.
#include <cstring>
#include <limits>

#include "arguments/defects.h"

namespace moeblas::test {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
constexpr size_t kUnknown = sizeof(Longer<moeblas_router>::unknown);

std::string number(int64_t i) { return std::to_string(i); }
std::string number(size_t i) { return std::to_string(i); }

// A quantized argument, made wrong in every way.
class QuantizedDefects {
 public:
  QuantizedDefects(DefectList& list, size_t at) : list_(list), at_(at) {
    const moeblas_quantized& q = valid().fields;
    if (q.mode != MOEBLAS_DENSE) {
      fields();
      formats();
    } else {
      dense();
    }
    the_struct();
    tensors();
  }

 private:
  const QuantizedArgument& valid() const { return list_.valid.quantized[at_]; }
  const QuantizedNames& names() const { return *valid().names; }
  bool floats() const { return list_.valid.find(names().scales) == nullptr; }

  // label: without the argument's name, which comes before it.
  template <class Change>
  Defect& defect(const std::string& what, std::vector<std::string> named, Change&& change) {
    Defect& d = list_.add(std::string(names().argument) + " " + what, std::move(named));
    d.in_infer = valid().in_infer;
    change(d.bad.quantized[at_]);
    return d;
  }
  std::string field(const char* name) const { return std::string(names().prefix) + name; }
  // What a message may name if the format does not go with the tensors.
  std::vector<std::string> anything() const {
    std::vector<std::string> all = valid().partners;
    const QuantizedNames& n = names();
    all.insert(all.end(), {n.codes, n.scales, n.biases, n.tensor_scale, field("mode"),
                           field("bits"), field("group_size"), field("scale_layout")});
    return all;
  }

  void the_struct() {
    const std::vector<std::string> named{names().argument};
    defect("missing", named, [](QuantizedArgument& q) { q.missing = true; });
    for (size_t size : {size_t{0}, size_t{16}, sizeof(moeblas_quantized) - 8}) {
      defect("struct_size " + number(size), named,
             [&](QuantizedArgument& q) { q.fields.struct_size = size; });
    }
    defect("sets an unknown field", named, [](QuantizedArgument& q) {
      q.fields.struct_size += kUnknown;
      q.unknown_field = true;
    });
  }

  // Values that no format has; infer takes the format even where it does not take the struct.
  void fields() {
    const moeblas_quantized& own = valid().fields;
    for (int32_t mode : {-1, 5, 99, INT32_MAX, INT32_MIN}) {
      defect("mode " + number(int64_t{mode}), {field("mode")}, [&](QuantizedArgument& q) {
        q.fields.mode = mode;
      }).in_infer = valid().format_in_infer;
    }
    for (int32_t layout : {-1, 2, 99, INT32_MIN}) {
      defect("scale_layout " + number(int64_t{layout}), {field("scale_layout")},
             [&](QuantizedArgument& q) { q.fields.scale_layout = layout; })
          .in_infer = valid().format_in_infer;
    }
    const QuantizedArgument defaults = with_defaults();
    const bool affine = own.mode == MOEBLAS_AFFINE;
    for (int32_t bits : {-8, -1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 32, INT32_MAX}) {
      for (int32_t group : {-1, 1, 8, 16, 24, 32, 48, 64, 128, 256, INT32_MAX}) {
        const bool legal_bits =
            affine ? bits >= 2 && bits <= 8 && bits != 7 : bits == defaults.fields.bits;
        const bool legal_group = affine ? group == 16 || group == 32 || group == 64 || group == 128
                                        : group == defaults.fields.group_size;
        if (legal_bits && legal_group) continue;
        // Every illegal width with one group, every illegal group with one width.
        if (!legal_bits && group != defaults.fields.group_size) continue;
        defect("bits " + number(int64_t{bits}) + ", group " + number(int64_t{group}),
               {field("bits")},
               [&](QuantizedArgument& q) {
                 q.fields.bits = bits;
                 q.fields.group_size = group;
               })
            .in_infer = valid().format_in_infer;
      }
    }
  }
  // Floats leave width and group to the mode's default.
  QuantizedArgument with_defaults() const {
    QuantizedArgument q = valid();
    if (q.fields.bits == 0) q.fields.bits = q.fields.mode == MOEBLAS_MXFP8 ? 8 : 4;
    if (q.fields.group_size == 0) q.fields.group_size = q.fields.mode == MOEBLAS_NVFP4 ? 16 : 32;
    return q;
  }

  // Legal, but not the format that the tensors have.
  void formats() {
    const moeblas_quantized& own = valid().fields;
    for (int32_t mode : {MOEBLAS_AFFINE, MOEBLAS_MXFP4, MOEBLAS_MXFP8, MOEBLAS_NVFP4}) {
      if (mode == own.mode) continue;
      defect("mode " + number(int64_t{mode}) + " for " + number(int64_t{own.mode}), anything(),
             [&](QuantizedArgument& q) {
               q.fields.mode = mode;
               q.fields.bits = q.fields.group_size = 0;
             });
    }
    defect("mode dense", anything(), [](QuantizedArgument& q) {
      q.fields.mode = MOEBLAS_DENSE;
      q.fields.bits = q.fields.group_size = 0;
    });
    const int32_t other = own.scale_layout == MOEBLAS_SCALES_ROWS ? MOEBLAS_SCALES_SWIZZLED_128X4
                                                                  : MOEBLAS_SCALES_ROWS;
    defect("scale_layout of the other kind", anything(),
           [&](QuantizedArgument& q) { q.fields.scale_layout = other; });
    if (own.mode != MOEBLAS_AFFINE) return;
    for (int32_t bits : {2, 8}) {
      defect("bits " + number(int64_t{bits}) + " for 4", anything(),
             [&](QuantizedArgument& q) { q.fields.bits = bits; });
    }
    for (int32_t group : {16, 64}) {
      defect("group " + number(int64_t{group}) + " for 32", anything(),
             [&](QuantizedArgument& q) { q.fields.group_size = group; });
    }
  }

  // A dense argument has nothing but its floats.
  void dense() {
    for (int32_t mode : {-1, 0, 1, 2, 3, 5, INT32_MIN}) {
      defect("mode " + number(int64_t{mode}) + " for dense", {field("mode"), names().codes},
             [&](QuantizedArgument& q) { q.fields.mode = mode; });
    }
    defect("bits for dense", {field("bits")}, [](QuantizedArgument& q) { q.fields.bits = 4; });
    defect("group_size for dense", {field("group_size")},
           [](QuantizedArgument& q) { q.fields.group_size = 32; });
    for (int32_t layout : {-1, 1, 2}) {
      defect("scale_layout " + number(int64_t{layout}) + " for dense", {field("scale_layout")},
             [&](QuantizedArgument& q) { q.fields.scale_layout = layout; });
    }
  }

  // Tensors that the format has no place for, the multiplier given twice, scales in pieces.
  void tensors() {
    const QuantizedNames& n = names();
    const moeblas_quantized& own = valid().fields;
    const auto extra = [&](const char* name) {
      Defect& d = list_.add(std::string(name) + ": given", {name});
      Tensor t = *list_.valid.find(floats() ? n.codes : n.scales);
      t.name = name;
      t.output = false;
      d.bad.tensors.push_back(t);
      d.in_infer = valid().in_infer;
    };
    if (floats()) extra(n.scales);
    if (floats() || own.mode != MOEBLAS_AFFINE) extra(n.biases);
    const bool has_scale = list_.valid.find(n.tensor_scale) != nullptr;
    const bool takes_scale = own.mode == MOEBLAS_NVFP4 && valid().takes_tensor_scale;
    if (!takes_scale || valid().host_tensor_scale) extra(n.tensor_scale);
    if (!takes_scale || has_scale) {
      defect("tensor_scale as a number", {n.tensor_scale},
             [](QuantizedArgument& q) { q.host_tensor_scale = 2.0f; });
    } else if (valid().both_tensor_scales) {
      defect("alone with or without tensor_scale", {"tensor_scale_x", "tensor_scale_w"},
             [](QuantizedArgument& q) {
               q.host_tensor_scale =
                   q.host_tensor_scale ? std::optional<float>() : std::optional(2.0f);
             });
    }
    if (valid().host_tensor_scale) {
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      const auto number = [&](const char* what, float bad) {
        defect(what, {n.tensor_scale}, [&](QuantizedArgument& q) { q.host_tensor_scale = bad; });
      };
      number("tensor_scale NaN", std::numeric_limits<float>::quiet_NaN());
      number("tensor_scale infinite", kInfinity);
      number("tensor_scale negative", -0.5f);
      // To decode by, 0 has a meaning; nothing can be divided by it.
      if (floats()) number("tensor_scale 0 to quantize by", 0.0f);
      if (floats()) number("tensor_scale subnormal to quantize by", 1e-39f);
    }
    if (own.scale_layout == MOEBLAS_SCALES_ROWS) return;
    Defect& d = list_.add(std::string(n.scales) + ": swizzled with gaps", {n.scales});
    Tensor& scales = *d.bad.find(n.scales);
    scales.strides.assign(scales.shape.size(), 1);
    int64_t step = scales.shape.back() + 4;
    for (size_t i = scales.shape.size() - 1; i-- > 0;) {
      scales.strides[i] = step;
      step *= scales.shape[i];
    }
    d.in_infer = valid().in_infer;
  }

  DefectList& list_;
  size_t at_;
};

// A struct of an operation: its size, and fields that no version knows.
template <class Struct>
void add_struct_sizes(DefectList& list, const char* name, bool in_infer,
                      std::optional<Longer<Struct>> Case::* member) {
  for (size_t size : {size_t{0}, sizeof(Struct) - 8}) {
    Defect& d = list.add(std::string(name) + ".struct_size " + number(size), {name});
    (d.bad.*member)->known.struct_size = size;
    d.in_infer = in_infer;
  }
  Defect& d = list.add(std::string(name) + " sets an unknown field", {name});
  (d.bad.*member)->known.struct_size += kUnknown;
  (d.bad.*member)->unknown[kUnknown - 1] = 1;
  d.in_infer = in_infer;
}

void add_epilogue_defects(DefectList& list) {
  add_struct_sizes(list, "epilogue", false, &Case::epilogue);
  if (list.valid.find("c") != nullptr) return;
  Defect& d = list.add("beta without c", {"beta"});
  d.bad.epilogue->known.beta = 1;
  d.in_infer = false;
}

void add_router_defects(DefectList& list) {
  list.add("no router", {"router"}).bad.router.reset();
  add_struct_sizes(list, "router", true, &Case::router);
  const auto field = [&](const char* name, int32_t moeblas_router::* member,
                         std::initializer_list<int32_t> values) {
    for (int32_t value : values) {
      Defect& d = list.add(std::string(name) + " " + number(int64_t{value}), {name});
      d.bad.router->known.*member = value;
    }
  };
  // 8 experts in 4 groups, of which 2 are considered.
  field("top_k", &moeblas_router::top_k, {-1, 5, 9, INT32_MAX, INT32_MIN});
  field("score", &moeblas_router::score, {-1, 2, INT32_MAX});
  field("n_group", &moeblas_router::n_group, {0, -1, 3, 16, INT32_MIN});
  field("topk_group", &moeblas_router::topk_group, {0, -1, 5, INT32_MAX});
}

void add_layer_defects(DefectList& list) {
  list.add("no layer", {"layer"}).bad.layer.reset();
  add_struct_sizes(list, "layer", true, &Case::layer);
  const auto field = [&](const char* name, int32_t moeblas_ffn::* member,
                         std::initializer_list<int32_t> values) {
    for (int32_t value : values) {
      Defect& d = list.add(std::string(name) + " " + number(int64_t{value}), {name});
      d.bad.layer->known.*member = value;
    }
  };
  field("activation", &moeblas_ffn::activation, {-1, 5, INT32_MAX, INT32_MIN});
  field("glu_layout", &moeblas_ffn::glu_layout, {-1, 3, INT32_MAX, INT32_MIN});
  // A copy of an argument in the place of one that the layer's form does not have.
  const auto tensor = [&](const char* like, const char* name) {
    Defect& d = list.add(std::string(name) + ": given", {name});
    Tensor t = *list.valid.find(like);
    t.name = name;
    d.bad.tensors.push_back(t);
  };
  static constexpr QuantizedNames kGateUp{"gate_up", "down", "", "", "", ""};
  static constexpr QuantizedNames kGate{"gate", "down", "", "", "", ""};
  static constexpr QuantizedNames kUp{"up", "down", "", "", "", ""};
  const auto product = [&](const QuantizedNames& names, std::vector<std::string> named) {
    Defect& d = list.add(std::string(names.argument) + ": given", std::move(named));
    QuantizedArgument q = *list.valid.find_quantized("down");
    q.names = &names;
    d.bad.quantized.push_back(q);
  };
  if (list.valid.find_quantized("gate_up") != nullptr) {
    product(kGate, {"gate"});
    product(kUp, {"up"});
    tensor("gate_up_bias", "gate_bias");
    tensor("gate_up_bias", "up_bias");
    Defect& d = list.add("gate alone", {"up"});
    static constexpr QuantizedNames kAlone{"gate", "gate_up", "", "", "", ""};
    d.bad.quantized.front().names = &kAlone;
  } else {
    product(kGateUp, {"gate", "up"});
    tensor("gate_bias", "gate_up_bias");
    Defect& d = list.add("neither gate_up nor gate and up", {"gate_up"});
    std::erase_if(d.bad.quantized, [](const QuantizedArgument& q) {
      return std::strcmp(q.names->argument, "down") != 0;
    });
  }
}

void add_expert_count_defects(DefectList& list) {
  for (int64_t count : {int64_t{-1}, kHuge, -kHuge - 1, int64_t{1} << 31}) {
    list.add("experts " + number(count), {"experts"}).bad.experts = count;
  }
  for (int64_t by : {-1, 1}) {
    Defect& d =
        list.add("experts " + number(list.valid.experts + by) + " for the offsets", {"offsets"});
    d.bad.experts += by;
    d.in_infer = false;
  }
}

void add_option_defects(DefectList& list) {
  const auto option = [&](const std::string& what, const char* name, auto&& change) -> Defect& {
    Defect& d = list.add("options: " + what, {name});
    d.in_infer = false;
    change(d.bad.options);
    return d;
  };
  for (int32_t precision : {-1, 3, 99, INT32_MAX}) {
    option("precision " + number(int64_t{precision}), "precision",
           [&](moeblas_options& o) { o.precision = precision; });
  }
  for (size_t size : {size_t{0}, size_t{8}, sizeof(moeblas_options) - 8}) {
    option("struct_size " + number(size), "options",
           [&](moeblas_options& o) { o.struct_size = size; });
  }
  option("unknown kernel", "kernel", [](moeblas_options& o) { o.kernel = "no_such_kernel"; });
  option("empty kernel name", "kernel", [](moeblas_options& o) { o.kernel = ""; });
  alignas(64) static char memory[1 << 20];
  moeblas_query query{sizeof query, nullptr, 0, nullptr, 0};
  Case asking = list.valid;
  asking.options.query = &query;
  if (asking.call() != MOEBLAS_OK || query.workspace_bytes == 0) return;
  option("misaligned workspace", "workspace", [](moeblas_options& o) {
    o.workspace = memory + 8;
    o.workspace_bytes = sizeof memory - 64;
  }).in_query = false;
  for (size_t bytes : {size_t{0}, query.workspace_bytes / 2, query.workspace_bytes - 1}) {
    option("workspace of " + number(bytes), "workspace", [&](moeblas_options& o) {
      o.workspace = memory;
      o.workspace_bytes = bytes;
    }).in_query = false;
  }
}

// Ids out of range, with memory of their own, where the caller asks for a check.
void add_id_defects(DefectList& list) {
  for (const std::string& name : list.valid.ids) {
    const Tensor& t = *list.valid.find(name);
    const auto width = static_cast<int64_t>(size_of(t.dtype));
    std::vector<int64_t> bad_ids = list.valid.bad_ids;
    if (width == 8) bad_ids.insert(bad_ids.end(), {kHuge, -kHuge - 1});
    for (int64_t id : bad_ids) {
      for (int64_t position : {int64_t{0}, t.numel() - 1}) {
        Defect& d = list.add(name + ": holds " + number(id) + " at " + number(position), {name});
        Tensor& bad = *d.bad.find(name);
        bad.memory = std::make_shared<std::vector<uint8_t>>(*t.memory);
        bad.data = bad.memory->data() + (t.data - t.memory->data());
        std::memcpy(bad.data + position * width, &id, static_cast<size_t>(width));
        d.bad.options.check_ids = 1;
        d.in_infer = d.in_query = false;
      }
    }
  }
}

}  // namespace

void add_struct_defects(DefectList& list) {
  for (size_t i = 0; i < list.valid.quantized.size(); ++i) QuantizedDefects(list, i);
  if (list.valid.epilogue) add_epilogue_defects(list);
  if (list.valid.router) add_router_defects(list);
  if (list.valid.layer) add_layer_defects(list);
  if (list.valid.experts > 0) add_expert_count_defects(list);
  add_option_defects(list);
  add_id_defects(list);
}

}  // namespace moeblas::test
