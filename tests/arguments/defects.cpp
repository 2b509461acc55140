#include "arguments/defects.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <limits>

namespace moeblas::test {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

std::string number(int64_t i) { return std::to_string(i); }

class Generator {
 public:
  explicit Generator(const Case& valid) : valid_(valid) {}

  std::vector<Defect> generate() {
    for (size_t i = 0; i < valid_.tensors.size(); ++i) {
      at_ = i;
      presence();
      dtypes();
      dimensions();
      sizes();
      strides();
      memory();
      if (tensor().output) overlaps();
    }
    if (valid_.quantized) quantized();
    options();
    if (valid_.check_ids_applies) ids();
    return std::move(defects_);
  }

 private:
  const Tensor& tensor() const { return valid_.tensors[at_]; }

  // A copy of the call in which `change` has made the current tensor wrong.
  template <class Change>
  Defect& tensor_defect(const std::string& what, Change&& change, bool partners = false) {
    const Tensor& t = tensor();
    Defect& d = add(t.name + ": " + what);
    d.names = {t.name};
    if (partners) d.names.insert(d.names.end(), t.partners.begin(), t.partners.end());
    d.in_infer = t.in_infer && !t.output;
    change(d.bad.tensors[at_]);
    return d;
  }
  // The same for what is bound in the way of `bound`.
  template <class Change>
  void bound_defect(Bound bound, const std::string& what, Change&& change) {
    if (bound == Bound::free) return;
    Defect& d = tensor_defect(what, change, true);
    if (bound == Bound::by_output) d.in_infer = false;
  }
  Defect& add(const std::string& label) {
    Defect d;
    d.label = label;
    d.bad = valid_;
    defects_.push_back(std::move(d));
    return defects_.back();
  }

  void presence() {
    if (tensor().optional) return;
    const std::string name = tensor().name;
    Defect& d = add(name + ": missing");
    d.names = {name};
    d.in_infer = tensor().in_infer && !tensor().output;
    std::erase_if(d.bad.tensors, [&](const Tensor& t) { return t.name == name; });
  }

  void dtypes() {
    const auto has = [](const std::vector<DType>& list, DType d) {
      return std::find(list.begin(), list.end(), d) != list.end();
    };
    for (int i = 0; i < static_cast<int>(DType::other); ++i) {
      const auto dtype = static_cast<DType>(i);
      // uint8 is valid for codes, with a size of its own.
      if (dtype == tensor().dtype || has(tensor().dtypes, dtype)) continue;
      Defect& d =
          tensor_defect(name(dtype), [&](Tensor& t) { t.dtype = dtype; }, is_related(dtype));
      if (has(tensor().infer_dtypes, dtype)) d.in_infer = false;
    }
    const auto odd = [&](const char* what, moeblas_dtype dtype) {
      tensor_defect(what, [&](Tensor& t) { t.dlpack = dtype; });
    };
    const moeblas_dtype own = to_dlpack(tensor().dtype);
    odd("2 lanes", {own.code, own.bits, 2});
    odd("0 lanes", {own.code, own.bits, 0});
    odd("7 bits", {own.code, 7, 1});
    odd("complex64", {5, 64, 1});
    odd("no such code", {99, own.bits, 1});
  }
  // A dtype that could be right, so that another argument may be blamed: floats for floats, and
  // bytes for words of packed codes.
  bool is_related(DType dtype) const {
    return is_float(dtype) == is_float(tensor().dtype) || tensor().name == valid_.codes_name;
  }

  void dimensions() {
    tensor_defect("ndim -1", [](Tensor& t) { t.ndim = -1; });
    tensor_defect("ndim 9", [](Tensor& t) {
      t.shape.resize(9, 1);
      t.ndim = 9;
    });
    tensor_defect("ndim INT32_MIN", [](Tensor& t) { t.ndim = INT32_MIN; });
    tensor_defect("no shape", [](Tensor& t) { t.null_shape = true; });
    if (tensor().shape.size() > 1) {
      bound_defect(tensor().fewer_dims, "a dimension fewer",
                   [](Tensor& t) { t.shape.erase(t.shape.begin()); });
    }
    bound_defect(tensor().more_dims, "a dimension more",
                 [](Tensor& t) { t.shape.insert(t.shape.begin(), 1); });
    bound_defect(tensor().no_dims, "no dimensions", [](Tensor& t) { t.shape.clear(); });
  }

  void sizes() {
    for (size_t i = 0; i < tensor().shape.size(); ++i) {
      const std::string of = "size " + number(static_cast<int64_t>(i));
      for (int64_t by : {-1, 1}) {
        bound_defect(tensor().dims[i], of + (by < 0 ? " less 1" : " plus 1"),
                     [&](Tensor& t) { t.shape[i] += by; });
      }
      tensor_defect(of + " negative", [&](Tensor& t) { t.shape[i] = -1; });
      tensor_defect(of + " INT64_MIN", [&](Tensor& t) { t.shape[i] = -kHuge - 1; });
      tensor_defect(of + " INT64_MAX", [&](Tensor& t) { t.shape[i] = kHuge; });
      tensor_defect(of + " 2^61", [&](Tensor& t) { t.shape[i] = int64_t{1} << 61; });
      // Within the address space by itself; its size in bits is not.
      if (tensor().dims[i] == Bound::by_inputs) {
        bound_defect(Bound::by_inputs, of + " 2^58 + 1", [&](Tensor& t) {
          t.shape.assign(t.shape.size(), 1);
          t.shape[i] = (int64_t{1} << 58) + 1;
        });
      }
      // An empty tensor does not hide sizes whose product is no number.
      if (tensor().shape.size() > 1) {
        tensor_defect(of + " 0 beside 2^61", [&](Tensor& t) {
          t.shape[i] = 0;
          t.shape[(i + 1) % t.shape.size()] = int64_t{1} << 61;
        });
      }
    }
  }

  void strides() {
    const std::vector<int64_t>& shape = tensor().shape;
    std::vector<int64_t> plain(shape.size());
    int64_t step = 1;
    for (size_t i = shape.size(); i-- > 0;) {
      plain[i] = step;
      step *= shape[i];
    }
    for (size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] < 2) continue;
      const auto with = [&](const std::string& what, int64_t stride) {
        tensor_defect("stride " + number(static_cast<int64_t>(i)) + " " + what, [&](Tensor& t) {
          t.strides = plain;
          t.strides[i] = stride;
        });
      };
      with("INT64_MAX", kHuge);
      with("INT64_MIN", -kHuge - 1);
      with("2^60", int64_t{1} << 60);
      if (tensor().output) {
        with("0", 0);
        if (i > 0) with("of the dimension before", plain[i - 1]);
      }
      if (tensor().packed && i + 1 == shape.size()) {
        with("2", 2);
        with("-1", -1);
        with("0 (packed)", 0);
      }
    }
  }

  void memory() {
    const auto only_call = [&](Defect& d) { d.in_infer = false; };
    only_call(tensor_defect("no data", [](Tensor& t) { t.data = nullptr; }));
    const size_t width = size_of(tensor().dtype);
    for (size_t shift = 1; shift < width; shift *= 2) {
      only_call(tensor_defect("data off by " + number(static_cast<int64_t>(shift)),
                              [&](Tensor& t) { t.data += shift; }));
      only_call(tensor_defect("byte_offset " + number(static_cast<int64_t>(shift)),
                              [&](Tensor& t) { t.byte_offset = shift; }));
    }
    // The first argument decides what the others are compared with, so that a message about any
    // other names both.
    for (moeblas_device device : {moeblas_device{MOEBLAS_CUDA, 0}, moeblas_device{MOEBLAS_CPU, 1},
                                  moeblas_device{MOEBLAS_METAL, 0}, moeblas_device{-5, 0}}) {
      only_call(tensor_defect("on device " + number(device.type) + ", " + number(device.id),
                              [&](Tensor& t) { t.device = device; }));
    }
  }

  void overlaps() {
    for (size_t i = 0; i < valid_.tensors.size(); ++i) {
      if (i == at_) continue;
      const Tensor& other = valid_.tensors[i];
      const auto bytes = static_cast<int64_t>(size_of(other.dtype)) * other.numel();
      // From the first byte, and only the last element that a float can start at.
      for (int64_t shift : {bytes > 8 ? (bytes - 1) / 8 * 8 : 4, int64_t{0}}) {
        if (shift >= bytes) continue;
        Defect& d = tensor_defect("over " + other.name + " + " + number(shift),
                                  [&](Tensor& t) { t.data = other.data + shift; });
        d.names.push_back(other.name);
        d.in_infer = false;
      }
    }
  }

  void quantized() {
    const bool infer_has_struct =
        valid_.operation != nullptr && valid_.operation->infer_outputs == 1;
    const auto quantized_defect = [&](const std::string& what, auto&& change,
                                      std::vector<std::string> names) -> Defect& {
      Defect& d = add(what);
      d.names = std::move(names);
      change(d.bad);
      return d;
    };
    const std::string codes = valid_.codes_name;
    quantized_defect("no quantized", [](Case& c) { c.null_quantized = true; }, {codes}).in_infer =
        infer_has_struct;
    for (size_t size : {size_t{0}, size_t{16}, sizeof(moeblas_quantized) - 8}) {
      quantized_defect("struct_size " + number(static_cast<int64_t>(size)),
                       [&](Case& c) { c.quantized_size = size; }, {codes})
          .in_infer = infer_has_struct;
    }
    for (int32_t mode : {-1, 4, 99, INT32_MAX, INT32_MIN}) {
      quantized_defect("mode " + number(mode), [&](Case& c) { c.mode = mode; }, {"mode"});
    }
    for (int32_t layout : {-1, 2, 99, INT32_MIN}) {
      quantized_defect("scale_layout " + number(layout), [&](Case& c) { c.scale_layout = layout; },
                       {"scale_layout"})
          .in_infer = infer_has_struct;
    }
    const bool affine = valid_.mode == MOEBLAS_AFFINE;
    for (int32_t bits : {-8, -1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 32, INT32_MAX}) {
      for (int32_t group : {-1, 1, 8, 16, 24, 32, 48, 64, 128, 256, INT32_MAX}) {
        const bool legal_bits = affine ? bits >= 2 && bits <= 8 && bits != 7 : bits == valid_.bits;
        const bool legal_group = affine ? group == 16 || group == 32 || group == 64 || group == 128
                                        : group == valid_.group_size;
        if (legal_bits && legal_group) continue;
        // Every illegal width with one group, every illegal group with one width.
        if (!legal_bits && group != valid_.group_size) continue;
        quantized_defect("bits " + number(bits) + ", group " + number(group),
                         [&](Case& c) {
                           c.bits = bits;
                           c.group_size = group;
                         },
                         {legal_bits ? "group_size" : "bits"});
      }
    }
    // Legal, but not the format that the tensors have.
    if (affine) {
      for (int32_t bits : {2, 8}) {
        quantized_defect("bits " + number(bits) + " for 4", [&](Case& c) { c.bits = bits; },
                         {codes, "scales"})
            .in_infer = infer_has_struct;
      }
      for (int32_t group : {16, 64}) {
        quantized_defect("group " + number(group) + " for 32",
                         [&](Case& c) { c.group_size = group; }, {codes, "scales"})
            .in_infer = infer_has_struct;
      }
    }
    extra_tensors(infer_has_struct);
  }

  // Tensors that the mode has no place for, and the multiplier given twice.
  void extra_tensors(bool infer_has_struct) {
    const auto extra = [&](const char* name, const char* like) {
      Defect& d = add(std::string(name) + ": given");
      Tensor t = *valid_.find(like);
      t.name = name;
      d.bad.tensors.push_back(t);
      d.names = {name};
      d.in_infer = infer_has_struct;
      return &d;
    };
    const bool infer_checks_multiplier =
        infer_has_struct && std::strcmp(valid_.operation->name, "dequantize") != 0;
    if (valid_.mode != MOEBLAS_AFFINE) extra("biases", "scales");
    if (valid_.mode != MOEBLAS_NVFP4) {
      extra("tensor_scale", "scales")->in_infer = infer_checks_multiplier;
      Defect& d = add("host tensor_scale: given");
      d.bad.host_tensor_scale = 2.0f;
      d.names = {"tensor_scale"};
      d.in_infer = infer_checks_multiplier;
    } else if (valid_.find("tensor_scale") != nullptr) {
      Defect& d = add("tensor_scale: as a tensor and as a number");
      d.bad.host_tensor_scale = 2.0f;
      d.names = {"tensor_scale"};
      d.in_infer = infer_checks_multiplier;
    }
  }

  void options() {
    const auto option = [&](const std::string& what, const char* name, auto&& change) {
      Defect& d = add("options: " + what);
      d.names = {name};
      d.in_infer = false;
      change(d.bad.options);
    };
    for (int32_t precision : {-1, 3, 99, INT32_MAX}) {
      option("precision " + number(precision), "precision",
             [&](moeblas_options& o) { o.precision = precision; });
    }
    for (size_t size : {size_t{0}, size_t{8}, sizeof(moeblas_options) - 8}) {
      option("struct_size " + number(static_cast<int64_t>(size)), "options",
             [&](moeblas_options& o) { o.struct_size = size; });
    }
    option("unknown kernel", "kernel", [](moeblas_options& o) { o.kernel = "no_such_kernel"; });
    option("empty kernel name", "kernel", [](moeblas_options& o) { o.kernel = ""; });
    alignas(64) static char memory[1 << 20];
    moeblas_query query{sizeof query, nullptr, 0, nullptr, 0};
    Case asking = valid_;
    asking.options.query = &query;
    if (asking.call() == MOEBLAS_OK && query.workspace_bytes > 0) {
      option("misaligned workspace", "workspace", [](moeblas_options& o) {
        o.workspace = memory + 8;
        o.workspace_bytes = sizeof memory - 64;
      });
      for (size_t bytes : {size_t{0}, query.workspace_bytes / 2, query.workspace_bytes - 1}) {
        option("workspace of " + number(static_cast<int64_t>(bytes)), "workspace",
               [&](moeblas_options& o) {
                 o.workspace = memory;
                 o.workspace_bytes = bytes;
               });
      }
    }
  }

  // Ids out of range, with memory of their own, where the caller asks for a check.
  void ids() {
    for (const std::string& name : valid_.ids) {
      const Tensor& t = *valid_.find(name);
      const auto width = size_of(t.dtype);
      for (int64_t id : {int64_t{-1}, int64_t{127}, kHuge}) {
        for (int64_t position : {int64_t{0}, t.numel() - 1}) {
          Defect& d = add(name + ": holds " + number(id) + " at " + number(position));
          Tensor& bad = *d.bad.find(name);
          bad.memory = std::make_shared<std::vector<uint8_t>>(*t.memory);
          bad.data = bad.memory->data() + (t.data - t.memory->data());
          std::memcpy(bad.data + position * static_cast<int64_t>(width), &id, width);
          d.bad.options.check_ids = 1;
          d.names = {name, name == "expert_indices" ? "rhs_indices" : name};
          d.in_infer = false;
        }
      }
    }
  }

  const Case& valid_;
  size_t at_ = 0;
  std::vector<Defect> defects_;
};

}  // namespace

std::vector<Defect> defects_of(const Case& valid) { return Generator(valid).generate(); }

bool names_argument(const std::string& message, const std::string& name) {
  const auto word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (size_t at = message.find(name); at != std::string::npos; at = message.find(name, at + 1)) {
    const size_t end = at + name.size();
    if ((at == 0 || !word(message[at - 1])) && (end == message.size() || !word(message[end]))) {
      return true;
    }
  }
  return false;
}

}  // namespace moeblas::test
