#include "arguments/defects.h"

#include <algorithm>
#include <cctype>
#include <limits>

namespace moeblas::test {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

std::string number(int64_t i) { return std::to_string(i); }

// One tensor, made wrong in every way.
class TensorDefects {
 public:
  TensorDefects(DefectList& list, size_t at) : list_(list), at_(at) {
    presence();
    dtypes();
    dimensions();
    sizes();
    strides();
    memory();
    if (tensor().output) overlaps();
  }

 private:
  const Tensor& tensor() const { return list_.valid.tensors[at_]; }

  // A copy of the call in which `change` has made the tensor wrong.
  template <class Change>
  Defect& tensor_defect(const std::string& what, Change&& change, bool partners = false) {
    const Tensor& t = tensor();
    Defect& d = list_.add(t.name + ": " + what, {t.name});
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

  void presence() {
    if (tensor().optional) return;
    const std::string name = tensor().name;
    Defect& d = list_.add(name + ": missing", {name});
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
    if (is_float(dtype) == is_float(tensor().dtype)) return true;
    for (const QuantizedArgument& q : list_.valid.quantized) {
      if (tensor().name == q.names->codes) return true;
    }
    return false;
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
      beyond(of + " INT64_MAX", [&](Tensor& t) { t.shape[i] = kHuge; });
      beyond(of + " 2^61", [&](Tensor& t) { t.shape[i] = int64_t{1} << 61; });
      // Within the address space by itself; its size in bits is not.
      if (tensor().dims[i] == Bound::by_inputs) {
        bound_defect(Bound::by_inputs, of + " 2^58 + 1", [&](Tensor& t) {
          t.shape.assign(t.shape.size(), 1);
          t.shape[i] = (int64_t{1} << 58) + 1;
        });
      }
      // An empty tensor does not hide sizes whose product is no number.
      if (tensor().shape.size() > 1) {
        beyond(of + " 0 beside 2^61", [&](Tensor& t) {
          t.shape[i] = 0;
          t.shape[(i + 1) % t.shape.size()] = int64_t{1} << 61;
        });
        beyond(of + " 2^40 beside 2^40", [&](Tensor& t) {
          t.shape[i] = t.shape[(i + 1) % t.shape.size()] = int64_t{1} << 40;
        });
      }
    }
  }
  template <class Change>
  void beyond(const std::string& what, Change&& change) {
    tensor_defect(what, change).says = "beyond the address space";
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
      const auto with = [&](const std::string& what, int64_t stride) -> Defect& {
        return tensor_defect("stride " + number(static_cast<int64_t>(i)) + " " + what,
                             [&](Tensor& t) {
                               t.strides = plain;
                               t.strides[i] = stride;
                             });
      };
      for (int64_t stride : {kHuge, -kHuge - 1, int64_t{1} << 60, -(int64_t{1} << 60)}) {
        with(number(stride), stride).says = "beyond the address space";
      }
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
    const auto only_call = [](Defect& d) { d.in_infer = d.in_query = false; };
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
      tensor_defect("on device " + number(device.type) + ", " + number(device.id), [&](Tensor& t) {
        t.device = device;
      }).in_infer = false;
    }
  }

  void overlaps() {
    for (size_t i = 0; i < list_.valid.tensors.size(); ++i) {
      if (i == at_) continue;
      const Tensor& other = list_.valid.tensors[i];
      const auto bytes = static_cast<int64_t>(size_of(other.dtype)) * other.numel();
      // From the first byte, and only the last element that a float can start at.
      for (int64_t shift : {bytes > 8 ? (bytes - 1) / 8 * 8 : 4, int64_t{0}}) {
        if (shift >= bytes) continue;
        Defect& d = tensor_defect("over " + other.name + " + " + number(shift),
                                  [&](Tensor& t) { t.data = other.data + shift; });
        d.names.push_back(other.name);
        d.in_infer = d.in_query = false;
      }
    }
  }

  DefectList& list_;
  size_t at_;
};

}  // namespace

Defect& DefectList::add(const std::string& label, std::vector<std::string> names) {
  Defect d;
  d.label = label;
  d.bad = valid;
  d.names = std::move(names);
  defects.push_back(std::move(d));
  return defects.back();
}

void add_tensor_defects(DefectList& list) {
  for (size_t i = 0; i < list.valid.tensors.size(); ++i) TensorDefects(list, i);
}

std::vector<Defect> defects_of(const Case& valid) {
  DefectList list{valid, {}};
  add_tensor_defects(list);
  add_struct_defects(list);
  if (valid.operation->infer == nullptr) {
    for (Defect& d : list.defects) d.in_infer = false;
  }
  return std::move(list.defects);
}

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
